"""The weighted harmonic mean of precision and recall."""

from __future__ import annotations

from typing import Any, ClassVar

from gapless.metrics.classification.count_metrics import (
    BinaryScore,
    CountMetric,
    MulticlassScore,
    MultilabelScore,
    Ratio,
    ScoreTask,
)
from gapless.metrics.classification.counts import OutcomeCounts


class FBeta(CountMetric, abstract=True):
    """The harmonic mean of precision and recall, in which recall weighs `beta` times as much.

    Args:
        beta: the weight of recall relative to precision.
    """

    beta = 1.0
    validate_args: bool

    def ratio(self, counts: OutcomeCounts) -> Ratio:
        square = self.beta**2
        if square == 1:
            return 2 * counts.tp, counts.either
        return (1 + square) * counts.tp, square * counts.actual + counts.predicted

    def _set_beta(self, beta: Any) -> None:
        if self.validate_args and not (isinstance(beta, float) and beta > 0):
            raise ValueError(f"Expected argument `beta` to be a float larger than 0, but got {beta}.")
        self.beta = beta


class BinaryFBetaScore(FBeta, BinaryScore):
    """The harmonic mean of precision and recall, in which recall weighs `beta` times as much."""

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
        kwargs["zero_division"] = zero_division
        super().__init__(threshold, multidim_average, ignore_index, validate_args, **kwargs)
        self._set_beta(beta)


class MulticlassFBetaScore(FBeta, MulticlassScore):
    """The harmonic mean of precision and recall, in which recall weighs `beta` times as much."""

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
        kwargs["zero_division"] = zero_division
        super().__init__(num_classes, top_k, average, multidim_average, ignore_index, validate_args, **kwargs)
        self._set_beta(beta)


class MultilabelFBetaScore(FBeta, MultilabelScore):
    """The harmonic mean of precision and recall, in which recall weighs `beta` times as much."""

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
        kwargs["zero_division"] = zero_division
        super().__init__(
            num_labels, threshold, average, multidim_average, ignore_index, validate_args, **kwargs
        )
        self._set_beta(beta)


class BinaryF1Score(FBeta, BinaryScore):
    """The harmonic mean of precision and recall."""


class MulticlassF1Score(FBeta, MulticlassScore):
    """The harmonic mean of precision and recall."""

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
    """The harmonic mean of precision and recall."""


class FBetaScore(ScoreTask):
    """The harmonic mean of precision and recall of a task, in which recall weighs `beta` times as much."""

    defaults: ClassVar = {"beta": 1.0, **ScoreTask.defaults}


class F1Score(ScoreTask):
    """The harmonic mean of precision and recall of a task."""

    defaults: ClassVar = {**ScoreTask.defaults, "zero_division": 0}
