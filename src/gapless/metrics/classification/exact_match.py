"""The share of samples that are correct in every position."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.classification import label_messages, labels
from gapless.metrics.classification.counts import ClassLayout, ThresholdLayout
from gapless.metrics.classification.predictions import PredictionMetric
from gapless.metrics.divide import divide
from gapless.metrics.rows import Rows
from gapless.metrics.statistic import Slot
from gapless.metrics.tasks import Task


class ExactMatchRule(NamedTuple):
    """Decides which samples are correct in every position; `labels` is None for classes."""

    layout: ClassLayout | ThresholdLayout
    labels: int | None = None

    @property
    def config(self) -> tuple[Any, ...]:
        """The values by which two rules are equal."""
        layout = self.layout
        kind = layout.classes if isinstance(layout, ClassLayout) else (layout.threshold, layout.logits)
        return self.labels, kind, layout.ignore_index

    def is_right(self, batch: Batch) -> Tensor:
        """Whether all positions of a sample agree, ``[N]``, or for labels all labels, ``[N, ...]``."""
        layout, target = self.layout, batch.args[1]
        if isinstance(layout, ClassLayout):
            predicted = batch.derive(labels.top_class)
        else:
            predicted = batch.derive(
                labels.binary_labels, layout.threshold, layout.logits, layout.ignore_index
            )
        agree: Tensor = predicted == target
        if layout.ignore_index is not None:
            agree = agree | (target == layout.ignore_index)
        shape = agree.shape[: 1 if self.labels is None else 2]
        return agree.reshape(*shape, agree.shape[len(shape) :].numel()).all(1)

    def count_invalid(self, batch: Batch) -> Tensor:
        """Return how many targets and predicted labels are outside the valid range."""
        preds, target = batch.args
        max_label = self.layout.classes - 1 if isinstance(self.layout, ClassLayout) else 1
        invalid = (target < 0) | (target > max_label)
        if self.layout.ignore_index is not None:
            invalid = invalid & (target != self.layout.ignore_index)
        count = invalid.sum()
        return count if preds.is_floating_point() else count + ((preds < 0) | (preds > max_label)).sum()

    def check(self, batch: Batch, samplewise: bool) -> None:
        """Raise RuntimeError or ValueError for shapes that do not fit."""
        if isinstance(self.layout, ClassLayout):
            batch.derive(labels.check_multiclass, self.layout.classes, samplewise)
        else:
            batch.derive(labels.check_multilabel, self.labels, samplewise)


class MatchCounts(label_messages.LabelStatistic):
    """The number of correct samples, and of all samples."""

    def __init__(self, rule: ExactMatchRule, checked: bool) -> None:
        self.rule, self.label_rules = rule, rule.layout
        super().__init__(rule.config, {"right": Slot(), "seen": Slot(), "strange": Slot()}, checked)

    def count(self, batch: Batch) -> None:
        if self.checked:
            self.rule.check(batch, False)
            self.state["strange"].add_(self.rule.count_invalid(batch))
        right = self.rule.is_right(batch)
        self.state["right"].add_(right.sum())
        self.state["seen"].add_(right.numel())


class SampleMatchRows(label_messages.LabelStatistic, Rows):
    """The share of correct positions, per sample."""

    def __init__(self, rule: ExactMatchRule, checked: bool, capacity: int | None) -> None:
        self.rule, self.label_rules = rule, rule.layout
        super().__init__(rule.config, {"share": ((), torch.float32)}, capacity, checked)

    def count(self, batch: Batch) -> None:
        if self.checked:
            self.rule.check(batch, True)
            self.state["strange"].add_(self.rule.count_invalid(batch))
        right = self.rule.is_right(batch)
        self.append(share=right.float() if right.dim() == 1 else right.float().mean(1))


class ExactMatchMetric(PredictionMetric, abstract=True):
    """Exact match, for both tasks."""

    torchmetrics_slots = (("correct", "right", "int64", "row"), ("total", "seen", "int64", "row"))

    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    more_arguments: ClassVar[tuple[str, ...]] = ("capacity",)
    matches: Any

    def value(self) -> Tensor:
        if self.multidim_average == "samplewise":
            return torch.clone(self.matches.valid_rows("share"))
        return divide(self.matches.state["right"], self.matches.state["seen"])

    def _set_up_matches(
        self, rule: ExactMatchRule, multidim_average: str, validate_args: bool, capacity: int | None
    ) -> None:
        """Check and set `multidim_average`, and set up the statistic."""
        if validate_args:
            checks.check_multidim(multidim_average)
        self.multidim_average = multidim_average
        if multidim_average == "global":
            self.use("matches", MatchCounts(rule, validate_args))
        else:
            self.use("matches", SampleMatchRows(rule, validate_args, capacity))


class MulticlassExactMatch(ExactMatchMetric):
    """The share of samples whose positions are all of the correct class.

    Args:
        ignore_index: a target that counts as correct.
    """

    task = "multiclass"

    def __init__(
        self,
        num_classes: int,
        multidim_average: str = "global",
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        capacity = kwargs.pop("capacity", None)
        self._set_up(ignore_index, validate_args, kwargs, num_classes)
        if validate_args:
            checks.check_integer_above("num_classes", num_classes, 1)
        self._set_up_matches(
            ExactMatchRule(ClassLayout(num_classes, 1, ignore_index)),
            multidim_average,
            validate_args,
            capacity,
        )


class MultilabelExactMatch(ExactMatchMetric):
    """The share of positions whose labels are all correct.

    Args:
        ignore_index: a target that counts as correct.
    """

    task = "multilabel"
    more_arguments = ("logits", "capacity")

    def __init__(
        self,
        num_labels: int,
        threshold: float = 0.5,
        multidim_average: str = "global",
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        logits, capacity = kwargs.pop("logits", None), kwargs.pop("capacity", None)
        self._set_up(ignore_index, validate_args, kwargs, num_labels)
        if validate_args:
            checks.check_integer_above("num_labels", num_labels, 1)
            checks.check_unit_float("threshold", threshold, show_range=False)
        self.threshold = threshold
        rule = ExactMatchRule(ThresholdLayout(threshold, ignore_index, logits), num_labels)
        self._set_up_matches(rule, multidim_average, validate_args, capacity)


class ExactMatch(Task):
    """Exact matches of a task, multiclass or multilabel."""

    kinds = ("Multilabel", "Multiclass")
