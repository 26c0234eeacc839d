"""The receiver operating characteristic."""

from __future__ import annotations

from gapless.metrics.classification.curves import Curve, receiver_operating
from gapless.metrics.classification.scored import (
    BinaryScored,
    CurveMetric,
    MulticlassCurve,
    MultilabelCurve,
)
from gapless.metrics.classification.scores import Rising
from gapless.metrics.tasks import Task


class Roc(CurveMetric, abstract=True):
    """False positive rates, true positive rates and thresholds, from the highest threshold down."""

    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    descending = True
    drawn_as = "curve"
    curve_axes = ("False positive rate", "True positive rate")

    def curve(self, rising: Rising) -> Curve:
        return receiver_operating(rising)


class BinaryROC(Roc, BinaryScored):
    """The receiver operating characteristic."""


class MulticlassROC(Roc, MulticlassCurve):
    """The receiver operating characteristic of each class against the others."""

    plot_legend_name = "Class"


class MultilabelROC(Roc, MultilabelCurve):
    """The receiver operating characteristic of each label."""

    plot_legend_name = "Label"


class ROC(Task):
    """The receiver operating characteristic, of a task."""

    unplaced = ("average",)
