"""The weighted harmonic mean of precision and recall."""

from __future__ import annotations

from typing import Any, ClassVar

from gapless.metrics.classification.base import (
    TASK_PARAMETERS,
    BinaryScore,
    MulticlassScore,
    MultilabelScore,
    Ratio,
    Score,
)
from gapless.metrics.classification.counts import Counts
from gapless.metrics.tasks import Task


class FBeta(Score):
    """The harmonic mean in which recall weighs `beta` times as much as precision."""

    beta = 1.0

    def ratio(self, counts: Counts) -> Ratio:
        square = self.beta**2
        right = (1 + square) * counts.tp
        return right, right + square * counts.fn + counts.fp


def check_beta(beta: Any) -> float:
    """`beta`; raises ValueError unless it is a float above 0."""
    if not (isinstance(beta, float) and beta > 0):
        raise ValueError(f"Expected argument `beta` to be a float larger than 0, but got {beta}.")
    return beta


class BinaryFBetaScore(FBeta, BinaryScore):
    __doc__ = f"F-beta; the first argument is `beta`. {BinaryScore.__doc__}"

    def __init__(
        self,
        beta: float,
        threshold: float = 0.5,
        multidim_average: str = "global",
        ignore_index: int | None = None,
        validate_args: bool = True,
        zero_division: float = 0,
        **kwargs: Any,
    ) -> None:
        options = {**kwargs, "zero_division": zero_division}
        super().__init__(threshold, multidim_average, ignore_index, validate_args, **options)
        self.beta = check_beta(beta) if validate_args else beta


class MulticlassFBetaScore(FBeta, MulticlassScore):
    __doc__ = f"F-beta; the first argument is `beta`. {MulticlassScore.__doc__}"

    def __init__(
        self,
        beta: float,
        num_classes: int | None,
        top_k: int = 1,
        average: str | None = "macro",
        multidim_average: str = "global",
        ignore_index: int | None = None,
        validate_args: bool = True,
        zero_division: float = 0,
        **kwargs: Any,
    ) -> None:
        options = {**kwargs, "zero_division": zero_division}
        super().__init__(
            num_classes, top_k, average, multidim_average, ignore_index, validate_args, **options
        )
        self.beta = check_beta(beta) if validate_args else beta


class MultilabelFBetaScore(FBeta, MultilabelScore):
    __doc__ = f"F-beta; the first argument is `beta`. {MultilabelScore.__doc__}"

    def __init__(
        self,
        beta: float,
        num_labels: int,
        threshold: float = 0.5,
        average: str | None = "macro",
        multidim_average: str = "global",
        ignore_index: int | None = None,
        validate_args: bool = True,
        zero_division: float = 0,
        **kwargs: Any,
    ) -> None:
        options = {**kwargs, "zero_division": zero_division}
        super().__init__(
            num_labels, threshold, average, multidim_average, ignore_index, validate_args, **options
        )
        self.beta = check_beta(beta) if validate_args else beta


class BinaryF1Score(FBeta, BinaryScore):
    __doc__ = f"The harmonic mean of precision and recall. {BinaryScore.__doc__}"


class MulticlassF1Score(FBeta, MulticlassScore):
    __doc__ = f"The harmonic mean of precision and recall. {MulticlassScore.__doc__}"

    def __init__(
        self,
        num_classes: int | None,
        top_k: int = 1,
        average: str | None = "macro",
        multidim_average: str = "global",
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_classes, top_k, average, multidim_average, ignore_index, validate_args, **kwargs)


class MultilabelF1Score(FBeta, MultilabelScore):
    __doc__ = f"The harmonic mean of precision and recall. {MultilabelScore.__doc__}"


class FBetaScore(Task):
    """F-beta of a task."""

    forms: ClassVar = {
        "binary": BinaryFBetaScore,
        "multiclass": MulticlassFBetaScore,
        "multilabel": MultilabelFBetaScore,
    }
    arguments: ClassVar = {"beta": 1.0, **TASK_PARAMETERS, "zero_division": 0}


class F1Score(Task):
    """The harmonic mean of precision and recall of a task."""

    forms: ClassVar = {
        "binary": BinaryF1Score,
        "multiclass": MulticlassF1Score,
        "multilabel": MultilabelF1Score,
    }
    arguments: ClassVar = {**TASK_PARAMETERS, "zero_division": 0}
