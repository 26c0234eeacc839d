"""Ratios of counts: accuracy, precision, recall, specificity, and similar metrics."""

from __future__ import annotations

from typing import ClassVar

from gapless.metrics.classification.count_metrics import (
    BinaryScore,
    CountMetric,
    MulticlassScore,
    MultilabelScore,
    Ratio,
    ScoreTask,
)
from gapless.metrics.classification.counts import OutcomeCounts


class AccuracyScore(CountMetric, abstract=True):
    """The share of correct predictions; for a class, among the targets of that class."""

    torchmetrics_file: ClassVar[str | None] = "accuracy"
    counts_top_k = True

    def ratio(self, counts: OutcomeCounts) -> Ratio:
        if self.task == "multiclass":
            return counts.tp, counts.actual
        right = counts.tp + counts.tn
        return right, right + counts.fp + counts.fn


class BinaryAccuracy(AccuracyScore, BinaryScore):
    """Accuracy."""


class MulticlassAccuracy(AccuracyScore, MulticlassScore):
    """Accuracy."""


class MultilabelAccuracy(AccuracyScore, MultilabelScore):
    """Accuracy."""


class Accuracy(ScoreTask):
    """Accuracy of a task."""


class PrecisionScore(CountMetric, abstract=True):
    """The share of positive predictions that are correct."""

    torchmetrics_file: ClassVar[str | None] = "precision_recall"
    counts_top_k = True

    def ratio(self, counts: OutcomeCounts) -> Ratio:
        return counts.tp, counts.predicted


class BinaryPrecision(PrecisionScore, BinaryScore):
    """The share of positive predictions that are correct."""


class MulticlassPrecision(PrecisionScore, MulticlassScore):
    """The share of positive predictions that are correct."""


class MultilabelPrecision(PrecisionScore, MultilabelScore):
    """The share of positive predictions that are correct."""


class Precision(ScoreTask):
    """The share of positive predictions that are correct."""


class RecallScore(CountMetric, abstract=True):
    """The share of positives that are found."""

    torchmetrics_file: ClassVar[str | None] = "precision_recall"
    counts_top_k = True

    def ratio(self, counts: OutcomeCounts) -> Ratio:
        return counts.tp, counts.actual


class BinaryRecall(RecallScore, BinaryScore):
    """The share of positives that are found."""


class MulticlassRecall(RecallScore, MulticlassScore):
    """The share of positives that are found."""


class MultilabelRecall(RecallScore, MultilabelScore):
    """The share of positives that are found."""


class Recall(ScoreTask):
    """The share of positives that are found."""


class SpecificityScore(CountMetric, abstract=True):
    """The share of negatives that are predicted as negative."""

    torchmetrics_file: ClassVar[str | None] = "specificity"
    higher_is_better: bool | None = None

    def ratio(self, counts: OutcomeCounts) -> Ratio:
        return counts.tn, counts.tn + counts.fp


class BinarySpecificity(SpecificityScore, BinaryScore):
    """The share of negatives that are predicted as negative."""


class MulticlassSpecificity(SpecificityScore, MulticlassScore):
    """The share of negatives that are predicted as negative."""


class MultilabelSpecificity(SpecificityScore, MultilabelScore):
    """The share of negatives that are predicted as negative."""


class Specificity(ScoreTask):
    """The share of negatives that are predicted as negative."""


class NegativePredictiveValueScore(CountMetric, abstract=True):
    """The share of negative predictions that are correct."""

    torchmetrics_file: ClassVar[str | None] = "negative_predictive_value"
    counts_top_k = True
    higher_is_better: bool | None = None

    def ratio(self, counts: OutcomeCounts) -> Ratio:
        return counts.tn, counts.tn + counts.fn


class BinaryNegativePredictiveValue(NegativePredictiveValueScore, BinaryScore):
    """The share of negative predictions that are correct."""


class MulticlassNegativePredictiveValue(NegativePredictiveValueScore, MulticlassScore):
    """The share of negative predictions that are correct."""


class MultilabelNegativePredictiveValue(NegativePredictiveValueScore, MultilabelScore):
    """The share of negative predictions that are correct."""


class NegativePredictiveValue(ScoreTask):
    """The share of negative predictions that are correct."""


class HammingDistanceScore(AccuracyScore, abstract=True):
    """The share of predictions that are wrong."""

    torchmetrics_file: ClassVar[str | None] = "hamming"
    complement = True
    counts_top_k = False
    higher_is_better: bool | None = False


class BinaryHammingDistance(HammingDistanceScore, BinaryScore):
    """The share of predictions that are wrong."""


class MulticlassHammingDistance(HammingDistanceScore, MulticlassScore):
    """The share of predictions that are wrong."""


class MultilabelHammingDistance(HammingDistanceScore, MultilabelScore):
    """The share of predictions that are wrong."""


class HammingDistance(ScoreTask):
    """The share of predictions that are wrong."""
