"""The share of samples that are right as a whole."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.classification import labels, words
from gapless.metrics.classification.counts import Classes, Sides
from gapless.metrics.classification.predictions import PredictionMetric
from gapless.metrics.divide import divide
from gapless.metrics.rows import Rows
from gapless.metrics.statistic import Slot
from gapless.metrics.tasks import Task


class Whole(NamedTuple):
    """Which samples are right in every place: of classes, or of `number` labels."""

    of: Classes | Sides
    number: int | None = None

    @property
    def config(self) -> tuple[Any, ...]:
        """What tells it from others."""
        of = self.of
        kind = of.classes if isinstance(of, Classes) else (of.threshold, of.logits)
        return self.number, kind, of.ignore_index

    def right(self, batch: Batch) -> Tensor:
        """``[N, ...]`` of bool: for classes whether all places agree, for labels whether all labels do."""
        of, target = self.of, batch.args[1]
        if isinstance(of, Classes):
            predicted = batch.derive(labels.top_class)
        else:
            predicted = batch.derive(labels.binary_labels, of.threshold, of.logits, of.ignore_index)
        agree: Tensor = predicted == target
        if of.ignore_index is not None:
            agree = agree | (target == of.ignore_index)
        shape = agree.shape[: 1 if self.number is None else 2]
        return agree.reshape(*shape, agree.shape[len(shape) :].numel()).all(1)

    def strange(self, batch: Batch) -> Tensor:
        """How many targets and labels are not what they may be."""
        preds, target = batch.args
        most = self.of.classes - 1 if isinstance(self.of, Classes) else 1
        strange = (target < 0) | (target > most)
        if self.of.ignore_index is not None:
            strange = strange & (target != self.of.ignore_index)
        found = strange.sum()
        return found if preds.is_floating_point() else found + ((preds < 0) | (preds > most)).sum()

    def check(self, batch: Batch, samplewise: bool) -> None:
        """Raises RuntimeError or ValueError for shapes that do not fit."""
        if isinstance(self.of, Classes):
            batch.derive(labels.check_multiclass, self.of.classes, samplewise)
        else:
            batch.derive(labels.check_multilabel, self.number, samplewise)


class Matches(words.Labelled):
    """How many samples were right, and how many there were."""

    def __init__(self, whole: Whole, checked: bool) -> None:
        self.whole, self.subject = whole, whole.of
        super().__init__(whole.config, {"right": Slot(), "seen": Slot(), "strange": Slot()}, checked)

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
        self.whole, self.subject = whole, whole.of
        super().__init__(whole.config, {"share": ((), torch.float32)}, capacity, checked)

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
        self._match(Whole(Classes(num_classes, 1, ignore_index)), multidim_average, validate_args, capacity)


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
        whole = Whole(Sides(threshold, ignore_index, logits), num_labels)
        self._match(whole, multidim_average, validate_args, capacity)


class ExactMatch(Task):
    """Exact matches of a task, multiclass or multilabel."""

    kinds = ("Multilabel", "Multiclass")
