"""The best rate of a classifier at a threshold where another rate reaches a minimum."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gapless.metrics.classification.curves import (
    is_last_of_score,
    precision_recall_points,
    roc_points,
    warn_of_undefined_recall,
)
from gapless.metrics.classification.score_metrics import ScoreMetric
from gapless.metrics.classification.scores import CumulativeCounts, Thresholds
from gapless.metrics.tasks import Task

RateAndThreshold = tuple[Tensor, Tensor]
"""The best rates and their thresholds, ``[K]`` each."""
NO_THRESHOLD = 1e6
"""The threshold where none qualifies, as in TorchMetrics."""


class OperatingPoint(ScoreMetric, abstract=True):
    """The largest value of a rate where another rate is at least a minimum, and its threshold."""

    higher_is_better: bool | None = None
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    def _for_classes(self, best: RateAndThreshold) -> RateAndThreshold:
        """Return `best`, ``[K]`` each, as 0-dim tensors if the metric has a single curve."""
        return (best[0][0], best[1][0]) if self._single else best

    def _set_minimum(self, name: str, rate: float) -> None:
        """Set the argument `name`, the minimum of the other rate; raise ValueError unless it is a rate."""
        if self.validate_args and not (isinstance(rate, (int, float)) and 0 <= rate <= 1):
            raise ValueError(f"Expected argument `{name}` to be an float in the [0,1] range, but got {rate}")
        setattr(self, name, rate)


def best_rate_with_ties(
    rates: Tensor, other_rates: Tensor, cumulative: CumulativeCounts, min_rate: float
) -> RateAndThreshold:
    """Return the largest of `rates` where `other_rates` is at least `min_rate`, and its threshold.

    Of equal rates the one with the largest other rate wins, then the one with the largest threshold. If no
    threshold qualifies, the rate is 0 and the threshold NaN.
    """
    thresholds = cumulative.thresholds.expand_as(rates)
    is_best = (other_rates >= min_rate) & ~rates.isnan()
    if cumulative.exact:
        is_best = is_best & is_last_of_score(cumulative)
    largest: list[Tensor] = []
    for row in (rates, other_rates, thresholds):
        maximum = row.masked_fill(~is_best, -math.inf).amax(1)
        is_best = is_best & (row == maximum.unsqueeze(1))
        largest.append(maximum)
    rate = largest[0].clamp(min=0)
    return rate, largest[2].masked_fill(rate == 0, math.nan)


def best_rate_at_highest_threshold(
    rates: Tensor, other_rates: Tensor, cumulative: CumulativeCounts, min_rate: float
) -> RateAndThreshold:
    """Return the largest of `rates` where `other_rates` is at least `min_rate`, at its highest threshold.

    If no threshold qualifies, the rate is 0 and the threshold `NO_THRESHOLD`.
    """
    thresholds = cumulative.thresholds.expand(len(rates), -1)
    if cumulative.exact:
        thresholds = torch.nn.functional.pad(thresholds, (1, 0), value=1.0)
    is_allowed = other_rates >= min_rate
    best = rates.masked_fill(~is_allowed, -1).max(1)
    threshold = thresholds.gather(1, best.indices.unsqueeze(1)).squeeze(1)
    return best.values.clamp(min=0), threshold.masked_fill(~is_allowed.any(1), NO_THRESHOLD)


def precision_and_recall(cumulative: CumulativeCounts, task: str) -> tuple[Tensor, Tensor]:
    """Return precision and recall, ``[K, P]`` each.

    Without positives, recall is NaN for a class and 1 for a label.
    """
    warn_of_undefined_recall(cumulative, task)
    return precision_recall_points(cumulative, math.nan if task == "multiclass" else 1.0)


def sensitivity_and_specificity(cumulative: CumulativeCounts) -> tuple[Tensor, Tensor]:
    """Return sensitivity and specificity, ``[K, P]`` each; with every score kept, ``[K, P + 1]``."""
    fpr, tpr = roc_points(cumulative)
    return tpr, 1 - fpr


class MaxRecall(OperatingPoint, abstract=True):
    """The largest recall with at least a given precision.

    Args:
        min_precision: the minimum precision.
    """

    torchmetrics_file = "recall_fixed_precision"
    min_precision: float

    def score(self, cumulative: CumulativeCounts) -> RateAndThreshold:
        precision, recall = precision_and_recall(cumulative, self.task)
        return self._for_classes(best_rate_with_ties(recall, precision, cumulative, self.min_precision))


class BinaryRecallAtFixedPrecision(MaxRecall):
    """The largest recall with at least a given precision, and its threshold."""

    def __init__(
        self,
        min_precision: float,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._set_up_scores(1, thresholds, ignore_index, validate_args, kwargs)
        self._set_minimum("min_precision", min_precision)


class MulticlassRecallAtFixedPrecision(MaxRecall):
    """The largest recall with at least a given precision, and its threshold, of each class."""

    task = "multiclass"

    def __init__(
        self,
        num_classes: int,
        min_precision: float,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._set_up_scores(num_classes, thresholds, ignore_index, validate_args, kwargs)
        self._set_minimum("min_precision", min_precision)


class MultilabelRecallAtFixedPrecision(MaxRecall):
    """The largest recall with at least a given precision, and its threshold, of each label."""

    task = "multilabel"

    def __init__(
        self,
        num_labels: int,
        min_precision: float,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._set_up_scores(num_labels, thresholds, ignore_index, validate_args, kwargs)
        self._set_minimum("min_precision", min_precision)


class RecallAtFixedPrecision(Task):
    """The largest recall with at least a given precision, of a task."""


class MaxPrecision(OperatingPoint, abstract=True):
    """The largest precision with at least a given recall.

    Args:
        min_recall: the minimum recall.
    """

    torchmetrics_file = "precision_fixed_recall"
    min_recall: float

    def score(self, cumulative: CumulativeCounts) -> RateAndThreshold:
        precision, recall = precision_and_recall(cumulative, self.task)
        return self._for_classes(best_rate_with_ties(precision, recall, cumulative, self.min_recall))


class BinaryPrecisionAtFixedRecall(MaxPrecision):
    """The largest precision with at least a given recall, and its threshold."""

    def __init__(
        self,
        min_recall: float,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._set_up_scores(1, thresholds, ignore_index, validate_args, kwargs)
        self._set_minimum("min_recall", min_recall)


class MulticlassPrecisionAtFixedRecall(MaxPrecision):
    """The largest precision with at least a given recall, and its threshold, of each class."""

    task = "multiclass"

    def __init__(
        self,
        num_classes: int,
        min_recall: float,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._set_up_scores(num_classes, thresholds, ignore_index, validate_args, kwargs)
        self._set_minimum("min_recall", min_recall)


class MultilabelPrecisionAtFixedRecall(MaxPrecision):
    """The largest precision with at least a given recall, and its threshold, of each label."""

    task = "multilabel"

    def __init__(
        self,
        num_labels: int,
        min_recall: float,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._set_up_scores(num_labels, thresholds, ignore_index, validate_args, kwargs)
        self._set_minimum("min_recall", min_recall)


class PrecisionAtFixedRecall(Task):
    """The largest precision with at least a given recall, of a task."""


class MaxSensitivity(OperatingPoint, abstract=True):
    """The largest sensitivity with at least a given specificity.

    Args:
        min_specificity: the minimum specificity.
    """

    torchmetrics_file = "sensitivity_specificity"
    min_specificity: float

    def score(self, cumulative: CumulativeCounts) -> RateAndThreshold:
        sensitivity, specificity = sensitivity_and_specificity(cumulative)
        return self._for_classes(
            best_rate_at_highest_threshold(sensitivity, specificity, cumulative, self.min_specificity)
        )


class BinarySensitivityAtSpecificity(MaxSensitivity):
    """The largest sensitivity with at least a given specificity, and its threshold."""

    def __init__(
        self,
        min_specificity: float,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._set_up_scores(1, thresholds, ignore_index, validate_args, kwargs)
        self._set_minimum("min_specificity", min_specificity)


class MulticlassSensitivityAtSpecificity(MaxSensitivity):
    """The largest sensitivity with at least a given specificity, and its threshold, of each class."""

    task = "multiclass"

    def __init__(
        self,
        num_classes: int,
        min_specificity: float,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._set_up_scores(num_classes, thresholds, ignore_index, validate_args, kwargs)
        self._set_minimum("min_specificity", min_specificity)


class MultilabelSensitivityAtSpecificity(MaxSensitivity):
    """The largest sensitivity with at least a given specificity, and its threshold, of each label."""

    task = "multilabel"

    def __init__(
        self,
        num_labels: int,
        min_specificity: float,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._set_up_scores(num_labels, thresholds, ignore_index, validate_args, kwargs)
        self._set_minimum("min_specificity", min_specificity)


class SensitivityAtSpecificity(Task):
    """The largest sensitivity with at least a given specificity, of a task."""


class MaxSpecificity(OperatingPoint, abstract=True):
    """The largest specificity with at least a given sensitivity.

    Args:
        min_sensitivity: the minimum sensitivity.
    """

    torchmetrics_file = "specificity_sensitivity"
    min_sensitivity: float

    def score(self, cumulative: CumulativeCounts) -> RateAndThreshold:
        sensitivity, specificity = sensitivity_and_specificity(cumulative)
        return self._for_classes(
            best_rate_at_highest_threshold(specificity, sensitivity, cumulative, self.min_sensitivity)
        )


class BinarySpecificityAtSensitivity(MaxSpecificity):
    """The largest specificity with at least a given sensitivity, and its threshold."""

    def __init__(
        self,
        min_sensitivity: float,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._set_up_scores(1, thresholds, ignore_index, validate_args, kwargs)
        self._set_minimum("min_sensitivity", min_sensitivity)


class MulticlassSpecificityAtSensitivity(MaxSpecificity):
    """The largest specificity with at least a given sensitivity, and its threshold, of each class."""

    task = "multiclass"

    def __init__(
        self,
        num_classes: int,
        min_sensitivity: float,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._set_up_scores(num_classes, thresholds, ignore_index, validate_args, kwargs)
        self._set_minimum("min_sensitivity", min_sensitivity)


class MultilabelSpecificityAtSensitivity(MaxSpecificity):
    """The largest specificity with at least a given sensitivity, and its threshold, of each label."""

    task = "multilabel"

    def __init__(
        self,
        num_labels: int,
        min_sensitivity: float,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._set_up_scores(num_labels, thresholds, ignore_index, validate_args, kwargs)
        self._set_minimum("min_sensitivity", min_sensitivity)


class SpecificityAtSensitivity(Task):
    """The largest specificity with at least a given sensitivity, of a task."""
