"""The best rate of a classifier at a threshold where another rate reaches a minimum."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
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
    """The largest value of a rate where another rate is at least `min_rate`, and its threshold.

    A subclass defines :meth:`choose`, and in `min_rate_name` the public name of the argument `min_rate`.
    """

    higher_is_better: bool | None = None
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    min_rate_name = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if cls.min_rate_name and "min_rate" in inspect.signature(cls.__init__).parameters:
            cls.__init__ = rename_min_rate(cls.__init__, cls.min_rate_name)  # type: ignore[method-assign]
        super().__init_subclass__(**kwargs)

    def choose(self, cumulative: CumulativeCounts, min_rate: float) -> RateAndThreshold:
        """Return the best rates and their thresholds, ``[K]`` each."""
        raise NotImplementedError

    def score(self, cumulative: CumulativeCounts) -> RateAndThreshold:
        rate, threshold = self.choose(cumulative, getattr(self, self.min_rate_name))
        return (rate[0], threshold[0]) if self._single else (rate, threshold)

    def _set_up_point(self, classes: int, min_rate: float, validate_args: bool, *options: Any) -> None:
        """Set up the scores with `options`, and check and set the minimum rate."""
        self._set_up_scores(classes, *options)
        if validate_args and not (isinstance(min_rate, (int, float)) and 0 <= min_rate <= 1):
            raise ValueError(
                f"Expected argument `{self.min_rate_name}` to be an float in the [0,1] range,"
                f" but got {min_rate}"
            )
        setattr(self, self.min_rate_name, min_rate)


def rename_min_rate(init: Callable[..., None], name: str) -> Callable[..., None]:
    """Return the constructor `init` with its argument `min_rate` renamed to `name`."""
    signature = inspect.signature(init)
    parameters = [
        parameter.replace(name=name) if parameter.name == "min_rate" else parameter
        for parameter in signature.parameters.values()
    ]
    public = signature.replace(parameters=parameters)

    @functools.wraps(init)
    def construct(*args: Any, **kwargs: Any) -> None:
        arguments = public.bind(*args, **kwargs).arguments
        more = arguments.pop("kwargs", {})
        init(**{"min_rate" if key == name else key: value for key, value in arguments.items()}, **more)

    construct.__signature__ = public  # type: ignore[attr-defined]
    return construct


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


class BinaryOperating(OperatingPoint, abstract=True):
    """The binary form of an operating point."""

    def __init__(
        self,
        min_rate: float,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._set_up_point(1, min_rate, validate_args, thresholds, ignore_index, validate_args, kwargs)


class MulticlassOperating(OperatingPoint, abstract=True):
    """The multiclass form of an operating point: each class against all others."""

    task = "multiclass"

    def __init__(
        self,
        num_classes: int,
        min_rate: float,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._set_up_point(
            num_classes, min_rate, validate_args, thresholds, ignore_index, validate_args, kwargs
        )


class MultilabelOperating(OperatingPoint, abstract=True):
    """The multilabel form of an operating point."""

    task = "multilabel"

    def __init__(
        self,
        num_labels: int,
        min_rate: float,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._set_up_point(
            num_labels, min_rate, validate_args, thresholds, ignore_index, validate_args, kwargs
        )


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
    min_rate_name = "min_precision"

    def choose(self, cumulative: CumulativeCounts, min_rate: float) -> RateAndThreshold:
        precision, recall = precision_and_recall(cumulative, self.task)
        return best_rate_with_ties(recall, precision, cumulative, min_rate)


class BinaryRecallAtFixedPrecision(MaxRecall, BinaryOperating):
    """The largest recall with at least a given precision, and its threshold."""


class MulticlassRecallAtFixedPrecision(MaxRecall, MulticlassOperating):
    """The largest recall with at least a given precision, and its threshold, of each class."""


class MultilabelRecallAtFixedPrecision(MaxRecall, MultilabelOperating):
    """The largest recall with at least a given precision, and its threshold, of each label."""


class RecallAtFixedPrecision(Task):
    """The largest recall with at least a given precision, of a task."""


class MaxPrecision(OperatingPoint, abstract=True):
    """The largest precision with at least a given recall.

    Args:
        min_recall: the minimum recall.
    """

    torchmetrics_file = "precision_fixed_recall"
    min_rate_name = "min_recall"

    def choose(self, cumulative: CumulativeCounts, min_rate: float) -> RateAndThreshold:
        precision, recall = precision_and_recall(cumulative, self.task)
        return best_rate_with_ties(precision, recall, cumulative, min_rate)


class BinaryPrecisionAtFixedRecall(MaxPrecision, BinaryOperating):
    """The largest precision with at least a given recall, and its threshold."""


class MulticlassPrecisionAtFixedRecall(MaxPrecision, MulticlassOperating):
    """The largest precision with at least a given recall, and its threshold, of each class."""


class MultilabelPrecisionAtFixedRecall(MaxPrecision, MultilabelOperating):
    """The largest precision with at least a given recall, and its threshold, of each label."""


class PrecisionAtFixedRecall(Task):
    """The largest precision with at least a given recall, of a task."""


class MaxSensitivity(OperatingPoint, abstract=True):
    """The largest sensitivity with at least a given specificity.

    Args:
        min_specificity: the minimum specificity.
    """

    torchmetrics_file = "sensitivity_specificity"
    min_rate_name = "min_specificity"

    def choose(self, cumulative: CumulativeCounts, min_rate: float) -> RateAndThreshold:
        sensitivity, specificity = sensitivity_and_specificity(cumulative)
        return best_rate_at_highest_threshold(sensitivity, specificity, cumulative, min_rate)


class BinarySensitivityAtSpecificity(MaxSensitivity, BinaryOperating):
    """The largest sensitivity with at least a given specificity, and its threshold."""


class MulticlassSensitivityAtSpecificity(MaxSensitivity, MulticlassOperating):
    """The largest sensitivity with at least a given specificity, and its threshold, of each class."""


class MultilabelSensitivityAtSpecificity(MaxSensitivity, MultilabelOperating):
    """The largest sensitivity with at least a given specificity, and its threshold, of each label."""


class SensitivityAtSpecificity(Task):
    """The largest sensitivity with at least a given specificity, of a task."""


class MaxSpecificity(OperatingPoint, abstract=True):
    """The largest specificity with at least a given sensitivity.

    Args:
        min_sensitivity: the minimum sensitivity.
    """

    torchmetrics_file = "specificity_sensitivity"
    min_rate_name = "min_sensitivity"

    def choose(self, cumulative: CumulativeCounts, min_rate: float) -> RateAndThreshold:
        sensitivity, specificity = sensitivity_and_specificity(cumulative)
        return best_rate_at_highest_threshold(specificity, sensitivity, cumulative, min_rate)


class BinarySpecificityAtSensitivity(MaxSpecificity, BinaryOperating):
    """The largest specificity with at least a given sensitivity, and its threshold."""


class MulticlassSpecificityAtSensitivity(MaxSpecificity, MulticlassOperating):
    """The largest specificity with at least a given sensitivity, and its threshold, of each class."""


class MultilabelSpecificityAtSensitivity(MaxSpecificity, MultilabelOperating):
    """The largest specificity with at least a given sensitivity, and its threshold, of each label."""


class SpecificityAtSensitivity(Task):
    """The largest specificity with at least a given sensitivity, of a task."""
