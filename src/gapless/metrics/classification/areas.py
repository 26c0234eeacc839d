"""Areas under curves: the receiver operating characteristic, and precision over recall."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.classification.curves import (
    AreaBounds,
    area_bounds,
    average_over_classes,
    average_precision,
    average_precision_bounds,
    roc_area,
    roc_points,
    scaled_partial_area,
    warn_of_undefined_recall,
)
from gapless.metrics.classification.score_metrics import BinaryScoreMetric, ScoreMetric
from gapless.metrics.classification.scores import CumulativeCounts, Thresholds
from gapless.metrics.tasks import Task
from gapless.metrics.wrapping import squeeze_result


class AreaMetric(ScoreMetric, abstract=True):
    """A metric that is the area under a curve. A subclass defines :meth:`areas`."""

    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    def areas(self, cumulative: CumulativeCounts) -> Tensor:
        """Return the area under each curve, ``[K]``."""
        raise NotImplementedError

    def area_bounds(self, cumulative: CumulativeCounts) -> AreaBounds:
        """Return the smallest and largest possible areas, ``[K]`` each, from binned scores."""
        raise NotImplementedError

    def bounds(self) -> AreaBounds:
        """Return the smallest and largest value the metric could have if every score were kept.

        With `thresholds`, only the number of scores between two thresholds is known, and the exact value lies
        within these bounds. Without, both are the exact value. The bounds stay on the device and the host
        does not wait; with several processes this is a collective operation, like ``compute``.

        Example:
            >>> import torch
            >>> from gapless.metrics import BinaryAUROC
            >>> area = BinaryAUROC(thresholds=5)
            >>> area.update(torch.tensor([0.1, 0.3, 0.4, 0.9]), torch.tensor([0, 0, 1, 1]))
            >>> [bound.item() for bound in area.bounds()]
            [0.75, 1.0]
        """
        with self.sync_context(should_sync=not self._is_synced):
            cumulative = self.scored.cumulative_counts(self.average == "micro")
            areas = (self.areas(cumulative),) * 2 if cumulative.exact else self.area_bounds(cumulative)
            low, high = (squeeze_result(self._average(area, cumulative)) for area in areas)
        return low, high

    def score(self, cumulative: CumulativeCounts) -> Tensor:
        return self._average(self.areas(cumulative), cumulative)

    def _average(self, areas: Tensor, cumulative: CumulativeCounts) -> Tensor:
        """Return the average of `areas` over classes, or the only area."""
        return areas[0] if self._single else average_over_classes(areas, self.average, cumulative.positives)


class MulticlassArea(AreaMetric, abstract=True):
    """The multiclass form of an area: each class against all others.

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
            checks.check_one_of("average", average, ("macro", "weighted", "none", None), comma="")
        self._set_up_scores(num_classes, thresholds, ignore_index, validate_args, kwargs)
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
            checks.check_one_of("average", average, checks.AVERAGES, comma="")
        self._set_up_scores(num_labels, thresholds, ignore_index, validate_args, kwargs)
        self.average = average


class RocArea(AreaMetric, abstract=True):
    """The area under the receiver operating characteristic."""

    torchmetrics_file = "auroc"
    max_fpr: float | None = None

    def areas(self, cumulative: CumulativeCounts) -> Tensor:
        if self.max_fpr is None or self.max_fpr == 1:
            return roc_area(cumulative)
        return scaled_partial_area(*roc_points(cumulative), self.max_fpr)

    def area_bounds(self, cumulative: CumulativeCounts) -> AreaBounds:
        return area_bounds(cumulative, self.max_fpr)


class BinaryAUROC(RocArea, BinaryScoreMetric):
    """The area under the receiver operating characteristic.

    Args:
        max_fpr: the false positive rate up to which the area is taken, scaled so that chance is 0.5 and the
            best 1; None for the whole area.
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
    """The area under the receiver operating characteristic of each class against all others."""


class MultilabelAUROC(RocArea, MultilabelArea):
    """The area under the receiver operating characteristic of each label."""


class AUROC(Task):
    """The area under the receiver operating characteristic, of a task."""


class PrecisionArea(AreaMetric, abstract=True):
    """Average precision: the area under the step curve of precision over recall."""

    torchmetrics_file = "average_precision"

    def areas(self, cumulative: CumulativeCounts) -> Tensor:
        warn_of_undefined_recall(cumulative, self.task)
        absent = self.task == "multiclass" and cumulative.exact
        return average_precision(cumulative, math.nan if absent else 0.0)

    def area_bounds(self, cumulative: CumulativeCounts) -> AreaBounds:
        return average_precision_bounds(cumulative, math.nan if self.task == "multiclass" else 0.0)


class BinaryAveragePrecision(PrecisionArea, BinaryScoreMetric):
    """Average precision."""


class MulticlassAveragePrecision(PrecisionArea, MulticlassArea):
    """Average precision of each class against all others."""


class MultilabelAveragePrecision(PrecisionArea, MultilabelArea):
    """Average precision of each label."""


class AveragePrecision(Task):
    """Average precision, of a task."""
