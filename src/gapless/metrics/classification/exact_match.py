"""The share of samples that are right as a whole."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.classification import labels, words
from gapless.metrics.classification.predictions import PredictionMetric
from gapless.metrics.divide import divide
from gapless.metrics.rows import Rows
from gapless.metrics.statistic import Slot
from gapless.metrics.tasks import Task


class Whole:
    """Which samples are right in every place."""

    def __init__(
        self, classes: int | None, sides: tuple[int, float, bool | None] | None, ignore_index: int | None
    ) -> None:
        self.classes = classes
        self.sides = sides
        self.ignore_index = ignore_index

    def right(self, batch: Batch) -> Tensor:
        """``[N, ...]`` of bool: for classes whether all places agree, for labels whether all labels do."""
        target = batch.args[1]
        predicted = (
            batch.derive(labels.top_class)
            if self.sides is None
            else batch.derive(labels.binary_labels, *self.sides[1:], self.ignore_index)
        )
        agree: Tensor = predicted == target
        if self.ignore_index is not None:
            ignored = target == self.ignore_index
            agree = agree | ignored
        shape = agree.shape[: 1 if self.sides is None else 2]
        return agree.reshape(*shape, agree.shape[len(shape) :].numel()).all(1)

    def strange(self, batch: Batch) -> Tensor:
        """How many targets and labels are not what they may be."""
        target, preds = batch.args[1], batch.args[0]
        most = 1 if self.sides is not None else (self.classes or 0) - 1
        strange = (target < 0) | (target > most)
        if self.ignore_index is not None:
            strange = strange & (target != self.ignore_index)
        found = strange.sum()
        return found if preds.is_floating_point() else found + ((preds < 0) | (preds > most)).sum()

    def check(self, batch: Batch, samplewise: bool) -> None:
        if self.sides is None:
            batch.derive(labels.check_multiclass, self.classes, samplewise)
        else:
            batch.derive(labels.check_multilabel, self.sides[0], samplewise)

    def complaint(self, count: int) -> str:
        most = 1 if self.sides is not None else (self.classes or 0) - 1
        return f"Detected {words.some(count)} in `preds` or `target` outside 0 to {most}"

    def found(self, batch: Batch) -> str | None:
        if self.sides is None:
            return words.more_than_classes(batch, self.classes or 0, self.ignore_index)
        return words.neither_zero_nor_one(batch, self.ignore_index)


class Matches(words.Labelled):
    """How many samples were right, and how many there were."""

    def __init__(self, whole: Whole, checked: bool) -> None:
        self.whole = self.subject = whole
        config = (whole.classes, whole.sides, whole.ignore_index)
        super().__init__(config, {"right": Slot(), "seen": Slot(), "strange": Slot()}, checked)

    def count(self, batch: Batch) -> None:
        if self.checked:
            self.whole.check(batch, False)
            self.state["strange"].add_(self.whole.strange(batch))
        right = self.whole.right(batch)
        self.state["right"].add_(right.sum())
        self.state["seen"].add_(right.numel())


class SampleMatches(words.Labelled, Rows):
    """The share that is right, per sample."""

    def __init__(self, whole: Whole, checked: bool, capacity: int | None) -> None:
        self.whole = self.subject = whole
        config = (whole.classes, whole.sides, whole.ignore_index)
        super().__init__(config, {"share": ((), torch.float32)}, capacity, checked)

    def count(self, batch: Batch) -> None:
        if self.checked:
            self.whole.check(batch, True)
            self.state["strange"].add_(self.whole.strange(batch))
        right = self.whole.right(batch)
        self.append(share=right.float() if right.dim() == 1 else right.float().mean(1))


class ExactMatching(PredictionMetric, abstract=True):
    """What both tasks have in common."""

    torchmetrics_slots = "correct:i1=right total:i1=seen"

    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    beyond = "capacity"
    matches: Any

    def value(self) -> Tensor:
        if self.multidim_average == "samplewise":
            return torch.clone(self.matches.known("share"))
        return divide(self.matches.state["right"], self.matches.state["seen"])

    def _match(self, whole: Whole, multidim_average: str, validate_args: bool, capacity: int | None) -> None:
        if validate_args:
            checks.multidim(multidim_average)
        self.multidim_average = multidim_average
        if multidim_average == "global":
            self.use("matches", Matches(whole, validate_args))
        else:
            self.use("matches", SampleMatches(whole, validate_args, capacity))


class MulticlassExactMatch(ExactMatching):
    """The share of samples whose places are all of the right class.

    Args:
        ignore_index: a target that counts as right.
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
        self._begin(ignore_index, validate_args, kwargs, num_classes)
        if validate_args:
            checks.integer_above("num_classes", num_classes, 1)
        self._match(Whole(num_classes, None, ignore_index), multidim_average, validate_args, capacity)


class MultilabelExactMatch(ExactMatching):
    """The share of places whose labels are all right.

    Args:
        ignore_index: a target that counts as right.
    """

    task = "multilabel"
    beyond = "logits capacity"

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
        self._begin(ignore_index, validate_args, kwargs, num_labels)
        if validate_args:
            checks.integer_above("num_labels", num_labels, 1)
            checks.unit_float("threshold", threshold, range_told=False)
        self.threshold = threshold
        whole = Whole(None, (num_labels, threshold, logits), ignore_index)
        self._match(whole, multidim_average, validate_args, capacity)


class ExactMatch(Task):
    """Exact matches of a task, multiclass or multilabel."""

    kinds = ("Multilabel", "Multiclass")
