"""Areas under curves: the receiver operating characteristic, and precision over recall."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.classification.curves import (
    Bounds,
    area_bounds,
    average_precision,
    average_precision_bounds,
    over_classes,
    partial_area,
    recall_unknown,
    roc_area,
    roc_points,
)
from gapless.metrics.classification.scored import BinaryScored, ScoreMetric
from gapless.metrics.classification.scores import Rising, Thresholds
from gapless.metrics.tasks import Task
from gapless.metrics.wrapping import squeezed


class AreaMetric(ScoreMetric, abstract=True):
    """The area under a curve. A subclass gives :meth:`areas`."""

    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    def areas(self, rising: Rising) -> Tensor:
        """``[K]``: the area under each curve."""
        raise NotImplementedError

    def area_bounds(self, rising: Rising) -> Bounds:
        """What the areas may be when only bins of scores are known."""
        raise NotImplementedError

    def bounds(self) -> Bounds:
        """The least and the largest value that the metric could have with every score kept, on the device.

        With `thresholds` only the number of scores between two of them is known; within these bounds lies the
        value without. Where every score is kept, both are the value. The host does not wait; with several
        processes it is a collective operation, as ``compute`` is.

        Example:
            >>> area = BinaryAUROC(thresholds=5)
            >>> area.update(torch.tensor([0.1, 0.3, 0.4, 0.9]), torch.tensor([0, 0, 1, 1]))
            >>> [bound.item() for bound in area.bounds()]
            [0.75, 1.0]
        """
        with self.sync_context(should_sync=not self._is_synced):
            rising = self.scored.rising(self.average == "micro")
            areas = (self.areas(rising),) * 2 if rising.exact else self.area_bounds(rising)
            low, high = (squeezed(self._over_classes(one, rising)) for one in areas)
        return low, high

    def score(self, rising: Rising) -> Tensor:
        return self._over_classes(self.areas(rising), rising)

    def _over_classes(self, areas: Tensor, rising: Rising) -> Tensor:
        return areas[0] if self._single else over_classes(areas, self.average, rising.positives)


class MulticlassArea(AreaMetric, abstract=True):
    """The multiclass form of an area: each class against the others.

    Args:
        average: ``"macro"``, ``"weighted"`` (by support), or ``"none"`` or None for a value per class.
    """

    task = "multiclass"

    def __init__(
        self,
        num_classes: int,
        average: str | None = "macro",
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        if validate_args:
            checks.one_of("average", average, ("macro", "weighted", "none", None), comma="")
        self._score(num_classes, thresholds, ignore_index, validate_args, kwargs)
        self.average = average


class MultilabelArea(AreaMetric, abstract=True):
    """The multilabel form of an area."""

    task = "multilabel"

    def __init__(
        self,
        num_labels: int,
        average: str | None = "macro",
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        if validate_args:
            checks.one_of("average", average, checks.AVERAGES, comma="")
        self._score(num_labels, thresholds, ignore_index, validate_args, kwargs)
        self.average = average


class RocArea(AreaMetric, abstract=True):
    """The area under the receiver operating characteristic."""

    torchmetrics_file = "auroc"
    max_fpr: float | None = None

    def areas(self, rising: Rising) -> Tensor:
        if self.max_fpr is None or self.max_fpr == 1:
            return roc_area(rising)
        return partial_area(*roc_points(rising), self.max_fpr)

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


class PrecisionArea(AreaMetric, abstract=True):
    """Average precision, the area under the curve of precision over recall in steps."""

    torchmetrics_file = "average_precision"

    def areas(self, rising: Rising) -> Tensor:
        recall_unknown(rising, self.task)
        absent = self.task == "multiclass" and rising.exact
        return average_precision(rising, math.nan if absent else 0.0)

    def area_bounds(self, rising: Rising) -> Bounds:
        return average_precision_bounds(rising, math.nan if self.task == "multiclass" else 0.0)


class BinaryAveragePrecision(PrecisionArea, BinaryScored):
    """Average precision."""


class MulticlassAveragePrecision(PrecisionArea, MulticlassArea):
    """Average precision of each class against the others."""


class MultilabelAveragePrecision(PrecisionArea, MultilabelArea):
    """Average precision of each label."""


class AveragePrecision(Task):
    """Average precision, of a task."""
