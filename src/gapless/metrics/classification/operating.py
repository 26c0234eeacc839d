"""The best that a classifier reaches at a threshold where another rate is good enough."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gapless.metrics.classification.curves import (
    distinct,
    precision_recall_points,
    recall_unknown,
    roc_points,
)
from gapless.metrics.classification.scored import ScoreMetric
from gapless.metrics.classification.scores import Rising, Thresholds
from gapless.metrics.tasks import Task

Chosen = tuple[Tensor, Tensor]


class OperatingPoint(ScoreMetric, abstract=True):
    """The largest of one rate where another is at least `least`, and the threshold it takes.

    A subclass gives :meth:`choose`, and says in `bound` what its users call `least`.
    """

    higher_is_better: bool | None = None
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    bound = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if cls.bound and "least" in inspect.signature(cls.__init__).parameters:
            cls.__init__ = renamed(cls.__init__, cls.bound)  # type: ignore[method-assign]
        super().__init_subclass__(**kwargs)

    def choose(self, rising: Rising, least: float) -> Chosen:
        """``[K]`` of rates and ``[K]`` of thresholds."""
        raise NotImplementedError

    def score(self, rising: Rising) -> Chosen:
        rate, threshold = self.choose(rising, getattr(self, self.bound))
        return (rate[0], threshold[0]) if self._single else (rate, threshold)

    def _operate(self, classes: int, least: float, validate_args: bool, *others: Any) -> None:
        self._score(classes, *others)
        if validate_args and not (isinstance(least, (int, float)) and 0 <= least <= 1):
            raise ValueError(
                f"Expected argument `{self.bound}` to be an float in the [0,1] range, but got {least}"
            )
        setattr(self, self.bound, least)


def renamed(init: Callable[..., None], name: str) -> Callable[..., None]:
    """A constructor whose argument `least` is called `name`."""
    signature = inspect.signature(init)
    parameters = [
        one.replace(name=name) if one.name == "least" else one for one in signature.parameters.values()
    ]
    public = signature.replace(parameters=parameters)

    @functools.wraps(init)
    def construct(*args: Any, **kwargs: Any) -> None:
        given = public.bind(*args, **kwargs).arguments
        more = given.pop("kwargs", {})
        init(**{"least" if key == name else key: value for key, value in given.items()}, **more)

    construct.__signature__ = public  # type: ignore[attr-defined]
    return construct


def best_precise(wanted: Tensor, other: Tensor, rising: Rising, least: float) -> Chosen:
    """The largest of `wanted` where `other` is at least `least`: then of `other`, then of the thresholds.

    Without any it is 0, at a threshold that is NaN.
    """
    thresholds = rising.thresholds.expand_as(wanted)
    there = (other >= least) & ~wanted.isnan()
    if rising.exact:
        there = there & distinct(rising)
    found: list[Tensor] = []
    for row in (wanted, other, thresholds):
        most = row.masked_fill(~there, -math.inf).amax(1)
        there = there & (row == most.unsqueeze(1))
        found.append(most)
    rate = found[0].clamp(min=0)
    return rate, found[2].masked_fill(rate == 0, math.nan)


def best_rate(wanted: Tensor, other: Tensor, rising: Rising, least: float) -> Chosen:
    """The largest of `wanted` where `other` is at least `least`, at the highest threshold.

    Without any it is 0, at a threshold of a million.
    """
    thresholds = rising.thresholds.expand(len(wanted), -1)
    if rising.exact:
        thresholds = torch.nn.functional.pad(thresholds, (1, 0), value=1.0)
    there = other >= least
    best = wanted.masked_fill(~there, -1).max(1)
    threshold = thresholds.gather(1, best.indices.unsqueeze(1)).squeeze(1)
    return best.values.clamp(min=0), threshold.masked_fill(~there.any(1), 1e6)


class BinaryOperating(OperatingPoint, abstract=True):
    """The binary form."""

    def __init__(
        self,
        least: float,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._operate(1, least, validate_args, thresholds, ignore_index, validate_args, kwargs)


class MulticlassOperating(OperatingPoint, abstract=True):
    """The multiclass form: each class against the others."""

    task = "multiclass"

    def __init__(
        self,
        num_classes: int,
        least: float,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._operate(num_classes, least, validate_args, thresholds, ignore_index, validate_args, kwargs)


class MultilabelOperating(OperatingPoint, abstract=True):
    """The multilabel form."""

    task = "multilabel"

    def __init__(
        self,
        num_labels: int,
        least: float,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._operate(num_labels, least, validate_args, thresholds, ignore_index, validate_args, kwargs)


def precision_and_recall(rising: Rising, task: str) -> tuple[Tensor, Tensor]:
    """``[K, P]`` each; the recall of a class without positives is NaN, of a label 1."""
    recall_unknown(rising, task)
    return precision_recall_points(rising, math.nan if task == "multiclass" else 1.0)


def sensitivity_and_specificity(rising: Rising) -> tuple[Tensor, Tensor]:
    """``[K, P]`` each, or ``[K, P + 1]`` with the point before every score."""
    fpr, tpr = roc_points(rising)
    return tpr, 1 - fpr


class RecallAtPrecision(OperatingPoint, abstract=True):
    """The largest recall that some precision allows.

    Args:
        min_precision: the precision that is needed.
    """

    torchmetrics_file = "recall_fixed_precision"
    bound = "min_precision"

    def choose(self, rising: Rising, least: float) -> Chosen:
        precision, recall = precision_and_recall(rising, self.task)
        return best_precise(recall, precision, rising, least)


class BinaryRecallAtFixedPrecision(RecallAtPrecision, BinaryOperating):
    """The largest recall that some precision allows, and the threshold it takes."""


class MulticlassRecallAtFixedPrecision(RecallAtPrecision, MulticlassOperating):
    """The largest recall that some precision allows, and the threshold it takes, of each class."""


class MultilabelRecallAtFixedPrecision(RecallAtPrecision, MultilabelOperating):
    """The largest recall that some precision allows, and the threshold it takes, of each label."""


class RecallAtFixedPrecision(Task):
    """The largest recall that some precision allows, of a task."""


class PrecisionAtRecall(OperatingPoint, abstract=True):
    """The largest precision that some recall allows.

    Args:
        min_recall: the recall that is needed.
    """

    torchmetrics_file = "precision_fixed_recall"
    bound = "min_recall"

    def choose(self, rising: Rising, least: float) -> Chosen:
        precision, recall = precision_and_recall(rising, self.task)
        return best_precise(precision, recall, rising, least)


class BinaryPrecisionAtFixedRecall(PrecisionAtRecall, BinaryOperating):
    """The largest precision that some recall allows, and the threshold it takes."""


class MulticlassPrecisionAtFixedRecall(PrecisionAtRecall, MulticlassOperating):
    """The largest precision that some recall allows, and the threshold it takes, of each class."""


class MultilabelPrecisionAtFixedRecall(PrecisionAtRecall, MultilabelOperating):
    """The largest precision that some recall allows, and the threshold it takes, of each label."""


class PrecisionAtFixedRecall(Task):
    """The largest precision that some recall allows, of a task."""


class SensitivityThere(OperatingPoint, abstract=True):
    """The largest sensitivity that some specificity allows.

    Args:
        min_specificity: the specificity that is needed.
    """

    torchmetrics_file = "sensitivity_specificity"
    bound = "min_specificity"

    def choose(self, rising: Rising, least: float) -> Chosen:
        sensitivity, specificity = sensitivity_and_specificity(rising)
        return best_rate(sensitivity, specificity, rising, least)


class BinarySensitivityAtSpecificity(SensitivityThere, BinaryOperating):
    """The largest sensitivity that some specificity allows, and the threshold it takes."""


class MulticlassSensitivityAtSpecificity(SensitivityThere, MulticlassOperating):
    """The largest sensitivity that some specificity allows, and the threshold it takes, of each class."""


class MultilabelSensitivityAtSpecificity(SensitivityThere, MultilabelOperating):
    """The largest sensitivity that some specificity allows, and the threshold it takes, of each label."""


class SensitivityAtSpecificity(Task):
    """The largest sensitivity that some specificity allows, of a task."""


class SpecificityThere(OperatingPoint, abstract=True):
    """The largest specificity that some sensitivity allows.

    Args:
        min_sensitivity: the sensitivity that is needed.
    """

    torchmetrics_file = "specificity_sensitivity"
    bound = "min_sensitivity"

    def choose(self, rising: Rising, least: float) -> Chosen:
        sensitivity, specificity = sensitivity_and_specificity(rising)
        return best_rate(specificity, sensitivity, rising, least)


class BinarySpecificityAtSensitivity(SpecificityThere, BinaryOperating):
    """The largest specificity that some sensitivity allows, and the threshold it takes."""


class MulticlassSpecificityAtSensitivity(SpecificityThere, MulticlassOperating):
    """The largest specificity that some sensitivity allows, and the threshold it takes, of each class."""


class MultilabelSpecificityAtSensitivity(SpecificityThere, MultilabelOperating):
    """The largest specificity that some sensitivity allows, and the threshold it takes, of each label."""


class SpecificityAtSensitivity(Task):
    """The largest specificity that some sensitivity allows, of a task."""
