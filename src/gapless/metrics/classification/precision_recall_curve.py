"""Precision over recall."""

from __future__ import annotations

import math
from typing import ClassVar

from gapless.metrics.classification.curves import Curve, precision_recall, recall_unknown
from gapless.metrics.classification.scored import (
    CURVE_PARAMETERS,
    BinaryScored,
    CurveMetric,
    MulticlassCurve,
    MultilabelCurve,
)
from gapless.metrics.classification.scores import Rising
from gapless.metrics.tasks import Task, by_task


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

    forms: ClassVar = by_task(
        BinaryPrecisionRecallCurve, MulticlassPrecisionRecallCurve, MultilabelPrecisionRecallCurve
    )
    arguments: ClassVar = CURVE_PARAMETERS
