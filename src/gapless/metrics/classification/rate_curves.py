"""Curves over all thresholds: receiver operating characteristic, precision over recall, equal error rate."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.classification.curves import (
    ClassCurves,
    mean_curve,
    precision_recall_curves,
    roc_curves,
    roc_points,
    warn_of_undefined_recall,
)
from gapless.metrics.classification.score_metrics import BinaryScoreMetric, ScoreMetric
from gapless.metrics.classification.scores import CumulativeCounts, Thresholds
from gapless.metrics.tasks import Task


class CurveMetric(ScoreMetric, abstract=True):
    """A curve and its thresholds. A subclass defines :meth:`curve`.

    Without thresholds the number of points depends on the data, and ``compute`` **waits** for it.
    """

    higher_is_better: bool | None = None
    descending = False
    """Whether the curve begins at the highest threshold."""

    def curve(self, cumulative: CumulativeCounts) -> ClassCurves:
        """Return two rows of values and the thresholds, for each class."""
        raise NotImplementedError

    def score(self, cumulative: CumulativeCounts) -> Any:
        curve = self.curve(cumulative)
        if self._single:
            thresholds = curve[2] if isinstance(curve[2], list) else [curve[2]]
            return curve[0][0], curve[1][0], thresholds[0]
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
            checks.check_one_of(
                "average", average, ("micro", "macro", None), listed="None, 'micro' or 'macro'"
            )
        self._set_up_scores(num_classes, thresholds, ignore_index, validate_args, kwargs)
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
        self._set_up_scores(num_labels, thresholds, ignore_index, validate_args, kwargs)


class Roc(CurveMetric, abstract=True):
    """False positive rates, true positive rates and thresholds, from the highest threshold down."""

    torchmetrics_file = "roc"
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    descending = True
    drawn_as = "curve"
    curve_axes = ("False positive rate", "True positive rate")

    def curve(self, cumulative: CumulativeCounts) -> ClassCurves:
        return roc_curves(cumulative)


class BinaryROC(Roc, BinaryScoreMetric):
    """The receiver operating characteristic."""


class MulticlassROC(Roc, MulticlassCurve):
    """The receiver operating characteristic of each class against all others."""


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

    def curve(self, cumulative: CumulativeCounts) -> ClassCurves:
        warn_of_undefined_recall(cumulative, self.task)
        return precision_recall_curves(cumulative, math.nan if self.task == "multiclass" else 1.0)


class BinaryPrecisionRecallCurve(PrecisionRecall, BinaryScoreMetric):
    """Precision over recall."""


class MulticlassPrecisionRecallCurve(PrecisionRecall, MulticlassCurve):
    """Precision over recall of each class against all others."""


class MultilabelPrecisionRecallCurve(PrecisionRecall, MultilabelCurve):
    """Precision over recall of each label."""


class PrecisionRecallCurve(Task):
    """Precision over recall."""

    unplaced = ("average",)


class EqualErrorRate(Roc, abstract=True):
    """The error rate at which false positive and false negative rates are equal.

    For the ``"macro"`` average without thresholds ``compute`` **waits**: the length of the mean curve depends
    on the data.
    """

    torchmetrics_file = "eer"

    def score(self, cumulative: CumulativeCounts) -> Tensor:
        if self.average == "macro":
            fpr, tpr = (row.unsqueeze(0) for row in super().score(cumulative)[:2])
        else:
            fpr, tpr = roc_points(cumulative)
        at = (fpr - (1 - tpr)).abs().argmin(1, keepdim=True)
        rates: Tensor = ((fpr.gather(1, at) + (1 - tpr.gather(1, at))) / 2).squeeze(1)
        return rates[0] if self._single or self.average == "macro" else rates


class BinaryEER(EqualErrorRate, BinaryScoreMetric):
    """The error rate at which false positive and false negative rates are equal."""


class MulticlassEER(EqualErrorRate, MulticlassCurve):
    """The error rate at which false positive and false negative rates are equal, of each class."""


class MultilabelEER(EqualErrorRate, MultilabelCurve):
    """The error rate at which false positive and false negative rates are equal, of each label."""


class EER(Task):
    """The equal error rate of a task."""
