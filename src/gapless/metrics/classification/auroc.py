"""The area under the receiver operating characteristic."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gapless.metrics.classification.curves import (
    Bounds,
    area,
    area_bounds,
    partial_area,
    roc_points,
)
from gapless.metrics.classification.scored import AreaMetric, BinaryScored, MulticlassArea, MultilabelArea
from gapless.metrics.classification.scores import Rising, Thresholds
from gapless.metrics.tasks import Task


class RocArea(AreaMetric, abstract=True):
    """The area under the receiver operating characteristic."""

    max_fpr: float | None = None

    def areas(self, rising: Rising) -> Tensor:
        fpr, tpr = roc_points(rising)
        if self.max_fpr is None or self.max_fpr == 1:
            return area(fpr, tpr)
        return partial_area(fpr, tpr, self.max_fpr)

    def area_bounds(self, rising: Rising) -> Bounds:
        return area_bounds(rising, self.max_fpr)


class BinaryAUROC(RocArea, BinaryScored):
    """The area under the receiver operating characteristic.

    Args:
        max_fpr: the false positive rate up to which it is taken, scaled so that chance is 0.5 and the best 1;
            None for all.
    """

    def __init__(
        self,
        max_fpr: float | None = None,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        if validate_args and max_fpr is not None and not (isinstance(max_fpr, float) and 0 < max_fpr <= 1):
            raise ValueError(f"Arguments `max_fpr` should be a float in range (0, 1], but got: {max_fpr}")
        super().__init__(thresholds, ignore_index, validate_args, **kwargs)
        self.max_fpr = max_fpr


class MulticlassAUROC(RocArea, MulticlassArea):
    """The area under the receiver operating characteristic of each class against the others."""


class MultilabelAUROC(RocArea, MultilabelArea):
    """The area under the receiver operating characteristic of each label."""


class AUROC(Task):
    """The area under the receiver operating characteristic, of a task."""
