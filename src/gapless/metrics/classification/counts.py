"""The counts that most classification metrics are computed from; exact integers, one pass over the labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from gapless.metrics import fusing
from gapless.metrics.batch import Batch
from gapless.metrics.classification import labels, words
from gapless.metrics.divide import share
from gapless.metrics.host import ClassTable, within_reach
from gapless.metrics.rows import Rows
from gapless.metrics.statistic import Slot, State, Statistic
from gapless.metrics.tally import tally

_NOT_CLASSES = 3
"""Places of a table of classes that are none: below them, above them, and for what is ignored."""


class Counts:
    """How often something was predicted, was so, and both; of `number`: ``()``, ``(C,)``, ``(N,)`` or
    ``(N, C)`` of int64. What follows from them is computed when it is asked for, once.
    """

    def __init__(self, tp: Tensor, predicted: Tensor, actual: Tensor, number: Callable[[], Tensor]) -> None:
        self.tp = tp
        self.predicted = predicted
        self.actual = actual
        self._number = number
        self._averages: dict[Any, Any] = {}

    @cached_property
    def fp(self) -> Tensor:
        """False positives."""
        return self.predicted - self.tp

    @cached_property
    def fn(self) -> Tensor:
        """False negatives."""
        return self.actual - self.tp

    @cached_property
    def tn(self) -> Tensor:
        """True negatives."""
        return self._number() - self.either + self.tp

    @cached_property
    def either(self) -> Tensor:
        """Predicted and actual ones together, both counted twice."""
        return self.predicted + self.actual

    @cached_property
    def summed(self) -> Counts:
        """Those of all classes, or labels, together."""
        tp, predicted, actual = torch.stack((self.tp, self.predicted, self.actual)).sum(-1).unbind()
        return Counts(tp, predicted, actual, lambda: self._number().expand_as(self.tp).sum(-1))

    def average(
        self, over: Tensor, under: Tensor, otherwise: float, complement: bool, weights: Tensor | None
    ) -> Tensor:
        """The average of ``over / under``, or of what is missing to 1, over classes; computed once for all
        who ask, and another tensor for each.
        """
        key = (id(over), id(under), otherwise, complement, id(weights))
        known = self._averages.get(key)
        if known is not None:
            return known[-1].clone()
        score = share(over, under, otherwise)
        score = 1 - score if complement else score
        found = score.mean(-1) if weights is None else (score * weights).sum(-1)
        self._averages[key] = (over, under, weights, found)  # which keeps them, and so their identities
        return found

    @cached_property
    def weights(self) -> Tensor:
        """What each class has in an average in which those count that were predicted or actual."""
        return equal(self.either)

    @cached_property
    def actual_weights(self) -> Tensor:
        """What each class has in an average in which those count that were actual."""
        return equal(self.actual)

    @cached_property
    def support_weights(self) -> Tensor:
        """What each class has in an average by how often it was actual."""
        return share(self.actual, self.actual.sum(-1, keepdim=True), 0.0)

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.tp, self.fp, self.tn, self.fn))


def equal(number: Tensor) -> Tensor:
    """The same weight for each class whose `number` is not 0."""
    there = number.clamp(max=1)
    return share(there, there.sum(-1, keepdim=True), 0.0)


class Classes:
    """How class indices become positions in a table, with places of their own for what does not count.

    Position 0 holds what lies below the classes, 1 to C the classes, C + 1 what lies above them, C + 2 what
    is ignored.
    """

    def __init__(self, classes: int, top_k: int, ignore_index: int | None, what: str = "value") -> None:
        self.classes = classes
        self.top_k = top_k
        self.what = what
        self.ignore_index = ignore_index
        self.width = classes + _NOT_CLASSES

    def positions(self, batch: Batch, nowhere: Tensor) -> Tensor:
        """``[3, N, ...]``: positions of the target, of the prediction, and of the target where both agree.

        `nowhere`, the number ``classes + 1`` as a tensor, stands where they do not.
        """
        target, predicted = batch.derive(labels.target_classes), self.predicted(batch)
        actual = target.clamp(-1, self.classes)
        if not batch.args[0].is_floating_point() or self.top_k > 1:
            predicted = predicted.clamp(-1, self.classes)
        if self.ignore_index is not None:
            ignored = target == self.ignore_index
            actual = actual.masked_fill_(ignored, self.classes + 1)
            predicted = predicted.masked_fill(ignored, self.classes + 1)
        hit = torch.where(actual == predicted, actual, nowhere)
        return torch.stack((actual, predicted, hit)).add_(1)

    def predicted(self, batch: Batch) -> Tensor:
        """The predicted class, in the shape of the target."""
        predicted: Tensor = (
            batch.derive(labels.best_of, self.top_k) if self.top_k > 1 else batch.derive(labels.top_class)
        )
        return predicted

    def are_classes(self, batch: Batch) -> bool:
        """Whether what is predicted is a class whatever the values are."""
        scores, target = batch.args
        return self.top_k == 1 and scores.dim() > target.dim() and scores.shape[1] == self.classes

    def counts(self, table: Tensor) -> Counts:
        """From a table ``[..., 3, width]``."""
        actual, predicted, tp = table[..., 1 : self.classes + 1].unbind(-2)
        return Counts(tp, predicted, actual, lambda: actual.sum(-1, keepdim=True))

    def strange(self, table: Tensor) -> Tensor:
        """How many targets and predictions are no class."""
        return self.edges(table).sum()

    def edges(self, table: Tensor) -> Tensor:
        """The places below and above the classes, of targets and predictions."""
        return table[..., :2, :: self.classes + 1]

    def complaint(self, count: int) -> str:
        return words.outside(count, f"0 to {self.classes - 1}", self.what)

    def found(self, batch: Batch) -> str | None:
        return words.more_than_classes(batch, self.classes, self.ignore_index)


class MulticlassCounts(words.Labelled):
    """Per class: how often it was the target, the prediction, and both."""

    clean: ClassVar[Slot] = Slot((2, 2))
    twins = True

    def __init__(self, classes: int, top_k: int, ignore_index: int | None, checked: bool) -> None:
        self.layout = self.subject = Classes(classes, top_k, ignore_index)
        self._on_host: ClassTable | None = None
        self.asked = fusing.Asked()
        self.constants = {"one": 1, "nowhere": classes + 1}
        slots = {"table": Slot((3, self.layout.width))}
        super().__init__((classes, top_k, ignore_index), slots, checked)

    one: Tensor
    nowhere: Tensor

    def count(self, batch: Batch) -> None:
        if self.checked:
            batch.derive(labels.check_multiclass, self.layout.classes, False)
        if self._count_on_host(batch) or self._fused(batch) or self._tallied(batch):
            return
        at = self.layout.positions(batch, self.nowhere).view(3, -1)
        self.state["table"].scatter_add_(1, at, self.one.expand_as(at))

    def _fused(self, batch: Batch) -> bool:
        layout = self.layout
        if not fusing.on(self.device) or layout.top_k > 1:
            return False
        return count_fused(self, batch, layout.classes, layout.ignore_index, pairs=False)

    def _tallied(self, batch: Batch) -> bool:
        layout, target = self.layout, batch.derive(labels.target_classes)
        if self.device.type != "cuda":
            return False
        scores = layout.are_classes(batch)
        predicted = layout.predicted(batch)
        return tally(self.state["table"], self.one, target, predicted, layout.ignore_index, scores)

    def _count_on_host(self, batch: Batch) -> bool:
        """Add `batch` to a table on the CPU; False where that is not possible or a label is no class."""
        layout, target = self.layout, batch.derive(labels.target_classes)
        if not within_reach(target):
            return False
        predicted = layout.predicted(batch)
        if not within_reach(predicted):
            return False
        return self._host_table().add(target, predicted, layout.ignore_index, layout.are_classes(batch))

    def _host_table(self) -> ClassTable:
        table = self.state["table"]
        if self._on_host is None or self._on_host.table is not table:
            self._on_host = ClassTable(table, self.layout.classes)
        return self._on_host

    def faults(self) -> Tensor:
        return self.layout.strange(self.state["table"])

    @property
    def saved_slots(self) -> dict[str, Slot]:
        return {**self.slots, "clean": Slot()}

    def decoded(self, state: State) -> State:
        return {**state, "clean": state["clean"].amin()} if "clean" in state else state

    def fault_cells(self) -> Tensor:
        return self.layout.edges(self.state["table"])

    def fault_pieces(self) -> list[Tensor] | None:
        step = self.layout.classes + 1
        rows = [self.state["table"][row, ::step] for row in (0, 1)]
        return [*rows, self.state["clean"]] if self.checked else None

    def told_by(self, pieces: Sequence[Tensor]) -> tuple[int, int]:
        return int((pieces[0] + pieces[1]).sum().item()), int(pieces[-1].min().item())

    def faults_on_host(self) -> int:
        return self._host_table().strange()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_on_host": None}

    def size_of(self, slot: str, shape: Sequence[int]) -> str:
        return f"{shape[-1] - _NOT_CLASSES} classes" if slot == "table" and len(shape) == 2 else ""

    def counts(self) -> Counts:
        """``(C,)`` each."""
        return self.layout.counts(self.state["table"])


def count_fused(part: Statistic, batch: Batch, classes: int, ignored: int | None, pairs: bool) -> bool:
    """Count `batch` into the table of `part` with Triton's kernels, and note; False where they cannot."""
    clean = part.state["clean"] if part.checked else None
    part.noted = fusing.count_classes(
        part.state["table"], clean, (batch.args[0], batch.args[1]), classes, ignored, pairs
    )
    return part.noted


FORMS = Counts(*fusing.UNITS[:3], lambda: fusing.UNITS[3])  # type: ignore[call-arg, arg-type, return-value]
"""Counts not as numbers, but as what they are sums of."""


class SamplewiseMulticlassCounts(words.Labelled, Rows):
    """The same counts, per sample."""

    def __init__(
        self, classes: int, top_k: int, ignore_index: int | None, checked: bool, capacity: int | None
    ) -> None:
        self.layout = self.subject = Classes(classes, top_k, ignore_index)
        self.constants = {"one": 1, "nowhere": classes + 1}
        column = ((3, self.layout.width), torch.int64)
        super().__init__((classes, top_k, ignore_index), {"table": column}, capacity, checked)

    one: Tensor
    nowhere: Tensor

    def count(self, batch: Batch) -> None:
        if self.checked:
            batch.derive(labels.check_multiclass, self.layout.classes, True)
        at = self.layout.positions(batch, self.nowhere).flatten(2).transpose(0, 1)
        table = at.new_zeros((at.shape[0], 3, self.layout.width)).scatter_add_(2, at, self.one.expand_as(at))
        self.state["strange"].add_(self.layout.strange(table))
        self.append(table=table)

    def counts(self) -> Counts:
        """``(N, C)`` each."""
        self.rows_needed()
        return self.layout.counts(self.known("table"))


class Hits(Statistic):
    """How often the predicted class was right and wrong, whatever the number of classes."""

    def __init__(self, ignore_index: int | None) -> None:
        self.ignore_index = ignore_index
        super().__init__((ignore_index,), {"hits": Slot(), "seen": Slot()}, checked=False)

    def count(self, batch: Batch) -> None:
        target, predicted = batch.derive(labels.target_classes), batch.derive(labels.top_class)
        hit = target == predicted
        if self.ignore_index is None:
            self.state["seen"].add_(hit.numel())
        else:
            kept = target != self.ignore_index
            self.state["seen"].add_(kept.sum())
            hit = hit & kept
        self.state["hits"].add_(hit.sum())

    def counts(self) -> Counts:
        """Without classes a miss is a false positive and a false negative."""
        seen = self.state["seen"]
        return Counts(self.state["hits"], seen, seen, lambda: seen)


class Sides:
    """How positive and negative targets meet predictions, per label."""

    def __init__(self, threshold: float, ignore_index: int | None, logits: bool | None) -> None:
        self.threshold = threshold
        self.ignore_index = ignore_index
        self.logits = logits
        self.rows = 4 if ignore_index is None else 5

    def meet(self, batch: Batch) -> Tensor:
        """``[rows, N, ...]`` of bool: hits, false alarms, positives, negatives, what is ignored."""
        target = batch.args[1]
        positive, negative = target == 1, target == 0
        ignored: tuple[Tensor, ...] = ()
        if self.ignore_index is not None:
            ignored = (target == self.ignore_index,)
            positive = positive & False if self.ignore_index == 1 else positive
            negative = negative & False if self.ignore_index == 0 else negative
        predicted = batch.derive(labels.binary_labels, self.threshold, self.logits, self.ignore_index)
        return torch.stack((predicted & positive, predicted & negative, positive, negative, *ignored))

    def counts(self, table: Tensor) -> Counts:
        """From a table whose last dimension is `rows`."""
        tp, fp, positive, negative = table.unbind(-1)[:4]
        return Counts(tp, tp + fp, positive, lambda: positive + negative)

    def complaint(self, count: int) -> str:
        allowed = "0 and 1" if self.ignore_index is None else f"0, 1 and {self.ignore_index} in `target`"
        return words.outside(count, allowed)

    def found(self, batch: Batch) -> str | None:
        return words.neither_zero_nor_one(batch, self.ignore_index)


class BinaryCounts(words.Labelled):
    """Hits and misses on either side of a threshold, per label (`labels` None: one, of no dimension)."""

    def __init__(self, sides: Sides, labels: int | None, checked: bool) -> None:
        self.sides = self.subject = sides
        self.labels = labels
        shape = (sides.rows,) if labels is None else (labels, sides.rows)
        slots = {"table": Slot(shape), "seen": Slot(), "strange": Slot()}
        super().__init__((sides.threshold, sides.ignore_index, sides.logits, labels), slots, checked)

    def count(self, batch: Batch) -> None:
        if self.checked:
            self._check(batch)
        met = self.sides.meet(batch)
        if self.labels is None:
            self.state["table"].add_(met.reshape(len(met), batch.args[1].numel()).sum(1))
        else:
            self.state["table"].add_(met.flatten(3).sum((1, 3)).t() if met.dim() > 3 else met.sum(1).t())

    def _check(self, batch: Batch) -> None:
        if self.labels is None:
            batch.derive(labels.check_binary, False)
        else:
            batch.derive(labels.check_multilabel, self.labels, False)
        self.state["seen"].add_(batch.args[1].numel())
        strange = batch.derive(labels.strange_labels)
        if strange is not None:
            self.state["strange"].add_(strange)

    def faults(self) -> Tensor:
        return self.state["seen"] - self.state["table"][..., 2:].sum() + self.state["strange"]

    def size_of(self, slot: str, shape: Sequence[int]) -> str:
        return f"{shape[0]} labels" if slot == "table" and len(shape) == 2 else ""

    def counts(self) -> Counts:
        """``()`` or ``(L,)`` each."""
        return self.sides.counts(self.state["table"])


class SamplewiseBinaryCounts(words.Labelled, Rows):
    """The same counts, per sample."""

    def __init__(self, sides: Sides, labels: int | None, checked: bool, capacity: int | None) -> None:
        self.sides = self.subject = sides
        self.labels = labels
        config = (sides.threshold, sides.ignore_index, sides.logits, labels)
        shape = (sides.rows,) if labels is None else (labels, sides.rows)
        super().__init__(config, {"table": (shape, torch.int64)}, capacity, checked)

    def count(self, batch: Batch) -> None:
        if self.checked:
            if self.labels is None:
                batch.derive(labels.check_binary, True)
            else:
                batch.derive(labels.check_multilabel, self.labels, True)
        met = self.sides.meet(batch)
        first = 2 if self.labels is None else 3
        table = met.flatten(first).sum(-1).movedim(0, -1)
        self.state["strange"].add_(batch.args[1].numel() - table[..., 2:].sum())
        strange = batch.derive(labels.strange_labels)
        if strange is not None:
            self.state["strange"].add_(strange)
        self.append(table=table)

    def counts(self) -> Counts:
        """``(N,)`` or ``(N, L)`` each."""
        self.rows_needed()
        return self.sides.counts(self.known("table"))
