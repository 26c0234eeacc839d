"""Precision over recall."""

from __future__ import annotations

import math

from gapless.metrics.classification.curves import Curve, precision_recall, recall_unknown
from gapless.metrics.classification.scored import (
    BinaryScored,
    CurveMetric,
    MulticlassCurve,
    MultilabelCurve,
)
from gapless.metrics.classification.scores import Rising
from gapless.metrics.tasks import Task


class PrecisionRecall(CurveMetric, abstract=True):
    """Precision, recall and thresholds, from the lowest threshold up."""

    drawn_as = "curve"
    curve_axes = ("Recall", "Precision")

    def curve(self, rising: Rising) -> Curve:
        recall_unknown(rising, self.task)
        return precision_recall(rising, math.nan if self.task == "multiclass" else 1.0)


class BinaryPrecisionRecallCurve(PrecisionRecall, BinaryScored):
    """Precision over recall."""


class MulticlassPrecisionRecallCurve(PrecisionRecall, MulticlassCurve):
    """Precision over recall of each class against the others."""


class MultilabelPrecisionRecallCurve(PrecisionRecall, MultilabelCurve):
    """Precision over recall of each label."""


class PrecisionRecallCurve(Task):
    """Precision over recall."""

    unplaced = ("average",)
