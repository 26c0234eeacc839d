"""The confusion matrix itself."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.classification.confusion import (
    NORMALIZATIONS,
    BinaryConfusion,
    Confusion,
    MulticlassConfusion,
    MultilabelConfusion,
    normalize_matrix,
)
from gapless.metrics.tasks import Task


class Matrix(Confusion, abstract=True):
    """Targets by predictions.

    Args:
        normalize: ``"true"``, ``"pred"`` or ``"all"`` for shares of targets, of predictions or of all;
            None or ``"none"`` for counts.
    """

    higher_is_better: bool | None = None
    normalize: str | None = None
    plot_legend_name = None
    drawn_as = "matrix"

    def score(self, matrix: Tensor) -> Tensor:
        return normalize_matrix(matrix, self.normalize)

    def _set_normalize(self, normalize: str | None, validate_args: bool) -> None:
        if validate_args:
            checks.check_one_of("normalize", normalize, NORMALIZATIONS, stop=".")
        self.normalize = normalize


class BinaryConfusionMatrix(Matrix, BinaryConfusion):
    """Targets by predictions, ``[2, 2]``."""

    def __init__(
        self,
        threshold: float = 0.5,
        ignore_index: int | None = None,
        normalize: str | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(threshold, ignore_index, validate_args, **kwargs)
        self._set_normalize(normalize, validate_args)


class MulticlassConfusionMatrix(Matrix, MulticlassConfusion):
    """Targets by predictions, ``[C, C]``."""

    def __init__(
        self,
        num_classes: int,
        ignore_index: int | None = None,
        normalize: str | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_classes, ignore_index, validate_args, **kwargs)
        self._set_normalize(normalize, validate_args)


class MultilabelConfusionMatrix(Matrix, MultilabelConfusion):
    """Targets by predictions, ``[L, 2, 2]``."""

    def __init__(
        self,
        num_labels: int,
        threshold: float = 0.5,
        ignore_index: int | None = None,
        normalize: str | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_labels, threshold, ignore_index, validate_args, **kwargs)
        self._set_normalize(normalize, validate_args)


class ConfusionMatrix(Task):
    """The confusion matrix of a task."""
