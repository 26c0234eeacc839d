"""Average precision."""

from __future__ import annotations

import math

from torch import Tensor

from gapless.metrics.classification.curves import (
    Bounds,
    average_precision,
    average_precision_bounds,
    recall_unknown,
)
from gapless.metrics.classification.scored import AreaMetric, BinaryScored, MulticlassArea, MultilabelArea
from gapless.metrics.classification.scores import Rising
from gapless.metrics.tasks import Task


class PrecisionArea(AreaMetric, abstract=True):
    """Average precision, the area under the curve of precision over recall in steps."""

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
