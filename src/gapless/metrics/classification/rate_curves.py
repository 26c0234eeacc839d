"""Curves over all thresholds: the receiver operating characteristic, and precision over recall."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.classification.curves import (
    Curve,
    mean_curve,
    precision_recall,
    recall_unknown,
    receiver_operating,
    roc_points,
)
from gapless.metrics.classification.scored import BinaryScored, ScoreMetric
from gapless.metrics.classification.scores import Rising, Thresholds
from gapless.metrics.tasks import Task


class CurveMetric(ScoreMetric, abstract=True):
    """A curve and its thresholds. A subclass gives :meth:`curve`.

    Without thresholds the number of points depends on the data, and ``compute`` waits for the device to learn
    it.
    """

    higher_is_better: bool | None = None
    descending = False
    """Whether the curve begins at the highest threshold."""

    def curve(self, rising: Rising) -> Curve:
        """Two rows of values and the thresholds, for each class."""
        raise NotImplementedError

    def score(self, rising: Rising) -> Any:
        curve = self.curve(rising)
        if self._single:
            several = curve[2] if isinstance(curve[2], list) else [curve[2]]
            return curve[0][0], curve[1][0], several[0]
        return mean_curve(curve, self.descending, x=0) if self.average == "macro" else curve


class MulticlassCurve(CurveMetric, abstract=True):
    """The multiclass form of a curve.

    Args:
        average: None for a curve per class, ``"macro"`` for their mean, ``"micro"`` for the curve of all
            classes taken together.
    """

    task = "multiclass"

    def __init__(
        self,
        num_classes: int,
        thresholds: Thresholds = None,
        average: str | None = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        if validate_args:
            checks.one_of("average", average, ("micro", "macro", None), listed="None, 'micro' or 'macro'")
        self._score(num_classes, thresholds, ignore_index, validate_args, kwargs)
        self.average = average


class MultilabelCurve(CurveMetric, abstract=True):
    """The multilabel form of a curve: one per label."""

    task = "multilabel"

    def __init__(
        self,
        num_labels: int,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._score(num_labels, thresholds, ignore_index, validate_args, kwargs)


class Roc(CurveMetric, abstract=True):
    """False positive rates, true positive rates and thresholds, from the highest threshold down."""

    torchmetrics_file = "roc"
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


class MultilabelROC(Roc, MultilabelCurve):
    """The receiver operating characteristic of each label."""


class ROC(Task):
    """The receiver operating characteristic, of a task."""

    unplaced = ("average",)


class PrecisionRecall(CurveMetric, abstract=True):
    """Precision, recall and thresholds, from the lowest threshold up."""

    torchmetrics_file = "precision_recall_curve"
    plot_legend_name = None
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


class EqualErrorRate(Roc, abstract=True):
    """The error rate at which false positives are as frequent as false negatives.

    For the ``"macro"`` average without thresholds ``compute`` waits, as that curve's length depends on the
    data.
    """

    torchmetrics_file = "eer"

    def score(self, rising: Rising) -> Tensor:
        if self.average == "macro":
            fpr, tpr = (row.unsqueeze(0) for row in super().score(rising)[:2])
        else:
            fpr, tpr = roc_points(rising)
        at = (fpr - (1 - tpr)).abs().argmin(1, keepdim=True)
        rates: Tensor = ((fpr.gather(1, at) + (1 - tpr.gather(1, at))) / 2).squeeze(1)
        return rates[0] if self._single or self.average == "macro" else rates


class BinaryEER(EqualErrorRate, BinaryScored):
    """The error rate at which false positives are as frequent as false negatives."""


class MulticlassEER(EqualErrorRate, MulticlassCurve):
    """The error rate at which false positives are as frequent as false negatives, of each class."""


class MultilabelEER(EqualErrorRate, MultilabelCurve):
    """The error rate at which false positives are as frequent as false negatives, of each label."""


class EER(Task):
    """The equal error rate of a task."""
