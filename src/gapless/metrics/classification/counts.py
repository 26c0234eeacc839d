"""Counts of outcomes per class or label: exact integers, from one pass over the labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from gapless.metrics import fusing
from gapless.metrics.batch import Batch
from gapless.metrics.breadth import Breadth
from gapless.metrics.classification import label_messages, labels
from gapless.metrics.divide import share
from gapless.metrics.host import ClassTable, is_readable_on_host
from gapless.metrics.rows import Rows
from gapless.metrics.statistic import Slot, State, Statistic
from gapless.metrics.tally import count_on_cuda

_EXTRA_CELLS = 3
"""Cells of a class table besides the classes: for labels below them, labels above them, and ignored ones."""


class OutcomeCounts:
    """True positives, predicted positives and actual positives, each ``()``, ``(C,)``, ``(N,)`` or ``(N, C)``
    of int64. Everything else is computed from them once, when first used.

    `number` returns the number of labels that were counted.
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
        """Predicted plus actual positives; true positives count twice."""
        return self.predicted + self.actual

    @cached_property
    def summed(self) -> OutcomeCounts:
        """The counts summed over classes or labels."""
        tp, predicted, actual = torch.stack((self.tp, self.predicted, self.actual)).sum(-1).unbind()
        return OutcomeCounts(tp, predicted, actual, lambda: self._number().expand_as(self.tp).sum(-1))

    def average(
        self,
        numerator: Tensor,
        denominator: Tensor,
        otherwise: float,
        complement: bool,
        weights: Tensor | None,
    ) -> Tensor:
        """Return the weighted mean over classes of ``numerator / denominator``, or of 1 minus it.

        `otherwise` is the quotient where the denominator is 0; `weights` None means an unweighted mean. The
        mean is computed once for equal arguments, and each call returns a tensor of its own.
        """
        key = (id(numerator), id(denominator), otherwise, complement, id(weights))
        cached = self._averages.get(key)
        if cached is not None:
            return cached[-1].clone()
        score = share(numerator, denominator, otherwise)
        score = 1 - score if complement else score
        mean = score.mean(-1) if weights is None else (score * weights).sum(-1)
        self._averages[key] = (
            numerator,
            denominator,
            weights,
            mean,
        )  # keeps the tensors alive, so that their ids stay unique
        return mean

    @cached_property
    def weights(self) -> Tensor:
        """Equal weights for the classes that were predicted or actual; 0 for all others."""
        return equal_weights(self.either)

    @cached_property
    def actual_weights(self) -> Tensor:
        """Equal weights for the classes that were actual; 0 for all others."""
        return equal_weights(self.actual)

    @cached_property
    def support_weights(self) -> Tensor:
        """Weights in proportion to how often each class was actual."""
        return share(self.actual, self.actual.sum(-1, keepdim=True), 0.0)

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.tp, self.fp, self.tn, self.fn))


def equal_weights(counts: Tensor) -> Tensor:
    """Return equal weights, with sum 1, for the classes whose count is not 0."""
    occurs = counts.clamp(max=1)
    return share(occurs, occurs.sum(-1, keepdim=True), 0.0)


class ClassLayout:
    """Maps class indices to cells of a table, with cells of their own for invalid and ignored labels.

    Cell 0 counts labels below the classes, 1 to C the classes, C + 1 labels above them, C + 2 ignored ones.
    `noun` is what messages call a label.
    """

    def __init__(self, classes: int, top_k: int, ignore_index: int | None, noun: str = "value") -> None:
        self.classes = classes
        self.top_k = top_k
        self.noun = noun
        self.ignore_index = ignore_index
        self.width = classes + _EXTRA_CELLS

    def positions(self, batch: Batch, invalid_cell: Tensor) -> Tensor:
        """Return cells ``[3, N, ...]``: of the target, of the prediction, and of the target if both agree.

        Where they do not agree the third is `invalid_cell`, the number ``classes + 1`` as a tensor.
        """
        target, predicted = batch.derive(labels.target_classes), self.predicted(batch)
        actual = target.clamp(-1, self.classes)
        if not batch.args[0].is_floating_point() or self.top_k > 1:
            predicted = predicted.clamp(-1, self.classes)
        if self.ignore_index is not None:
            ignored = target == self.ignore_index
            actual = actual.masked_fill_(ignored, self.classes + 1)
            predicted = predicted.masked_fill(ignored, self.classes + 1)
        hit = torch.where(actual == predicted, actual, invalid_cell)
        return torch.stack((actual, predicted, hit)).add_(1)

    def predicted(self, batch: Batch) -> Tensor:
        """Return the predicted classes, in the shape of the target."""
        predicted: Tensor = (
            batch.derive(labels.target_or_top_class, self.top_k)
            if self.top_k > 1
            else batch.derive(labels.top_class)
        )
        return predicted

    def predictions_are_classes(self, batch: Batch) -> bool:
        """Whether predictions come from scores, so that each of them is a valid class."""
        scores, target = batch.args
        return self.top_k == 1 and scores.dim() > target.dim() and scores.shape[1] == self.classes

    def counts(self, table: Tensor) -> OutcomeCounts:
        """Return the outcome counts of a table ``[..., 3, width]``."""
        actual, predicted, tp = table[..., 1 : self.classes + 1].unbind(-2)
        return OutcomeCounts(tp, predicted, actual, lambda: actual.sum(-1, keepdim=True))

    def count_invalid(self, table: Tensor) -> Tensor:
        """Return how many targets and predictions are not a class."""
        return self.invalid_cells(table).sum()

    def invalid_cells(self, table: Tensor) -> Tensor:
        """Return the cells below and above the classes, of targets and predictions, ``[..., 2, 2]``."""
        return table[..., :2, :: self.classes + 1]

    def complaint(self, count: int) -> str:
        return label_messages.outside_message(count, f"0 to {self.classes - 1}", self.noun)

    def describe_values(self, batch: Batch) -> str | None:
        return label_messages.too_many_values_message(batch, self.classes, self.ignore_index)


class MulticlassCounts(label_messages.LabelStatistic):
    """Per class: how often it was the target, the prediction, and both at once."""

    clean: ClassVar[Slot] = Slot((2, 2))
    twins = True

    def __init__(self, classes: int, top_k: int, ignore_index: int | None, checked: bool) -> None:
        self.layout = self.label_rules = ClassLayout(classes, top_k, ignore_index)
        self.breadth = Breadth("class", classes)
        self._on_host: ClassTable | None = None
        self.fused_rows = fusing.ScoreRows()
        self.constants = {"unit": 1, "invalid_cell": classes + 1}
        slots = {"table": Slot((3, self.layout.width))}
        super().__init__((classes, top_k, ignore_index), slots, checked)

    unit: Tensor
    invalid_cell: Tensor

    def count(self, batch: Batch) -> None:
        if self.checked:
            batch.derive(labels.check_multiclass, self.layout.classes, False)
        if self._count_on_host(batch) or self._count_fused(batch) or self._count_by_tally(batch):
            return
        cells = self.layout.positions(batch, self.invalid_cell).view(3, -1)
        self.state["table"].scatter_add_(1, cells, self.unit.expand_as(cells))

    def _count_fused(self, batch: Batch) -> bool:
        """Count `batch` with Triton's kernels; return False if they cannot."""
        layout = self.layout
        if not fusing.uses_kernels(self.device) or layout.top_k > 1:
            return False
        return count_fused(self, batch, layout.classes, layout.ignore_index, pairs=False)

    def _count_by_tally(self, batch: Batch) -> bool:
        """Count a large `batch` on a GPU block by block; return False if it is not one."""
        layout, target = self.layout, batch.derive(labels.target_classes)
        if self.device.type != "cuda":
            return False
        scores = layout.predictions_are_classes(batch)
        predicted = layout.predicted(batch)
        return count_on_cuda(self.state["table"], self.unit, target, predicted, layout.ignore_index, scores)

    def _count_on_host(self, batch: Batch) -> bool:
        """Count `batch` on the CPU with NumPy; return False if it is elsewhere or has an invalid label."""
        layout, target = self.layout, batch.derive(labels.target_classes)
        if not is_readable_on_host(target):
            return False
        predicted = layout.predicted(batch)
        if not is_readable_on_host(predicted):
            return False
        return self._host_table().add(
            target, predicted, layout.ignore_index, layout.predictions_are_classes(batch)
        )

    def _host_table(self) -> ClassTable:
        table = self.state["table"]
        if self._on_host is None or self._on_host.table is not table:
            self._on_host = ClassTable(table, self.layout.classes)
        return self._on_host

    def faults(self) -> Tensor:
        return self.layout.count_invalid(self.state["table"])

    @property
    def saved_slots(self) -> dict[str, Slot]:
        return {**self.slots, "clean": Slot()}

    def decode(self, state: State) -> State:
        return {**state, "clean": state["clean"].amin()} if "clean" in state else state

    def fault_cells(self) -> Tensor:
        return self.layout.invalid_cells(self.state["table"])

    def fault_pieces(self) -> list[Tensor] | None:
        step = self.layout.classes + 1
        rows = [self.state["table"][row, ::step] for row in (0, 1)]
        return [*rows, self.state["clean"]] if self.checked else None

    def read_faults(self, pieces: Sequence[Tensor]) -> tuple[int, int]:
        return int((pieces[0] + pieces[1]).sum().item()), int(pieces[-1].min().item())

    def faults_on_host(self) -> int:
        return self._host_table().strange()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_on_host": None}

    def counts(self) -> OutcomeCounts:
        """Return the outcome counts per class, ``(C,)`` each."""
        return self.layout.counts(self.state["table"])


def count_fused(
    statistic: Statistic, batch: Batch, classes: int, ignore_index: int | None, pairs: bool
) -> bool:
    """Count `batch` into the table of `statistic` with Triton's kernels; return False if they cannot.

    The same launch records whether the batch was free of bad values, as `Statistic.note` does.
    """
    clean = statistic.state["clean"] if statistic.checked else None
    statistic.noted = fusing.count_classes(
        statistic.state["table"], clean, (batch.args[0], batch.args[1]), classes, ignore_index, pairs
    )
    return statistic.noted


SYMBOLIC_COUNTS = OutcomeCounts(*fusing.UNITS[:3], lambda: fusing.UNITS[3])  # type: ignore[call-arg, arg-type, return-value]
"""Counts as symbols instead of numbers: a ratio of them yields its coefficients for the fused kernel."""


class SamplewiseMulticlassCounts(label_messages.LabelStatistic, Rows):
    """Per sample and class: how often it was the target, the prediction, and both at once."""

    def __init__(
        self, classes: int, top_k: int, ignore_index: int | None, checked: bool, capacity: int | None
    ) -> None:
        self.layout = self.label_rules = ClassLayout(classes, top_k, ignore_index)
        self.breadth = Breadth("class", classes)
        self.constants = {"unit": 1, "invalid_cell": classes + 1}
        column = ((3, self.layout.width), torch.int64)
        super().__init__((classes, top_k, ignore_index), {"table": column}, capacity, checked)

    unit: Tensor
    invalid_cell: Tensor

    def count(self, batch: Batch) -> None:
        if self.checked:
            batch.derive(labels.check_multiclass, self.layout.classes, True)
        cells = self.layout.positions(batch, self.invalid_cell).flatten(2).transpose(0, 1)
        table = cells.new_zeros((cells.shape[0], 3, self.layout.width)).scatter_add_(
            2, cells, self.unit.expand_as(cells)
        )
        self.state["strange"].add_(self.layout.count_invalid(table))
        self.append(table=table)

    def counts(self) -> OutcomeCounts:
        """Return the outcome counts per sample and class, ``(N, C)`` each."""
        self.require_rows()
        return self.layout.counts(self.valid_rows("table"))


class HitCounts(Statistic):
    """The number of correct predictions and of all, for an unknown number of classes."""

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

    def counts(self) -> OutcomeCounts:
        """Return the outcome counts; each miss is a false positive and a false negative."""
        total = self.state["seen"]
        return OutcomeCounts(self.state["hits"], total, total, lambda: total)


class ThresholdLayout:
    """Maps predictions at a threshold, and their targets, to outcomes.

    `rows` is the number of outcomes that are counted; ignored targets are the fifth.
    """

    def __init__(self, threshold: float, ignore_index: int | None, logits: bool | None) -> None:
        self.threshold = threshold
        self.ignore_index = ignore_index
        self.logits = logits
        self.rows = 4 if ignore_index is None else 5

    def outcomes(self, batch: Batch) -> Tensor:
        """Return bools ``[rows, N, ...]``: true positives, false positives, positives, negatives, ignored."""
        target = batch.args[1]
        positive, negative = target == 1, target == 0
        ignored: tuple[Tensor, ...] = ()
        if self.ignore_index is not None:
            ignored = (target == self.ignore_index,)
            positive = positive & False if self.ignore_index == 1 else positive
            negative = negative & False if self.ignore_index == 0 else negative
        predicted = batch.derive(labels.binary_labels, self.threshold, self.logits, self.ignore_index)
        return torch.stack((predicted & positive, predicted & negative, positive, negative, *ignored))

    def counts(self, table: Tensor) -> OutcomeCounts:
        """Return the outcome counts of a table ``[..., rows]``."""
        tp, fp, positive, negative = table.unbind(-1)[:4]
        return OutcomeCounts(tp, tp + fp, positive, lambda: positive + negative)

    def complaint(self, count: int) -> str:
        allowed = "0 and 1" if self.ignore_index is None else f"0, 1 and {self.ignore_index} in `target`"
        return label_messages.outside_message(count, allowed)

    def describe_values(self, batch: Batch) -> str | None:
        return label_messages.not_binary_message(batch, self.ignore_index)


class BinaryCounts(label_messages.LabelStatistic):
    """Counts of outcomes at a threshold, per label; `labels` None stands for a single one."""

    def __init__(self, layout: ThresholdLayout, labels: int | None, checked: bool) -> None:
        self.layout = self.label_rules = layout
        self.labels = labels
        self.breadth = Breadth("label", labels or 1, 0)
        shape = (layout.rows,) if labels is None else (labels, layout.rows)
        slots = {"table": Slot(shape), "seen": Slot(), "strange": Slot()}
        super().__init__((layout.threshold, layout.ignore_index, layout.logits, labels), slots, checked)

    def count(self, batch: Batch) -> None:
        if self.checked:
            self._check(batch)
        outcomes = self.layout.outcomes(batch)
        if self.labels is None:
            self.state["table"].add_(outcomes.reshape(len(outcomes), batch.args[1].numel()).sum(1))
        else:
            self.state["table"].add_(
                outcomes.flatten(3).sum((1, 3)).t() if outcomes.dim() > 3 else outcomes.sum(1).t()
            )

    def _check(self, batch: Batch) -> None:
        """Check the shapes of `batch`, and count its targets and invalid labels."""
        if self.labels is None:
            batch.derive(labels.check_binary, False)
        else:
            batch.derive(labels.check_multilabel, self.labels, False)
        self.state["seen"].add_(batch.args[1].numel())
        invalid = batch.derive(labels.count_invalid_labels)
        if invalid is not None:
            self.state["strange"].add_(invalid)

    def faults(self) -> Tensor:
        return self.state["seen"] - self.state["table"][..., 2:].sum() + self.state["strange"]

    def counts(self) -> OutcomeCounts:
        """Return the outcome counts, ``()`` each, or per label ``(L,)``."""
        return self.layout.counts(self.state["table"])


class SamplewiseBinaryCounts(label_messages.LabelStatistic, Rows):
    """Counts of outcomes at a threshold, per sample and label."""

    def __init__(
        self, layout: ThresholdLayout, labels: int | None, checked: bool, capacity: int | None
    ) -> None:
        self.layout = self.label_rules = layout
        self.labels = labels
        self.breadth = Breadth("label", labels or 1, 0)
        config = (layout.threshold, layout.ignore_index, layout.logits, labels)
        shape = (layout.rows,) if labels is None else (labels, layout.rows)
        super().__init__(config, {"table": (shape, torch.int64)}, capacity, checked)

    def count(self, batch: Batch) -> None:
        if self.checked:
            if self.labels is None:
                batch.derive(labels.check_binary, True)
            else:
                batch.derive(labels.check_multilabel, self.labels, True)
        outcomes = self.layout.outcomes(batch)
        first = 2 if self.labels is None else 3
        table = outcomes.flatten(first).sum(-1).movedim(0, -1)
        self.state["strange"].add_(batch.args[1].numel() - table[..., 2:].sum())
        invalid = batch.derive(labels.count_invalid_labels)
        if invalid is not None:
            self.state["strange"].add_(invalid)
        self.append(table=table)

    def counts(self) -> OutcomeCounts:
        """Return the outcome counts per sample, ``(N,)`` each, or per sample and label ``(N, L)``."""
        self.require_rows()
        return self.layout.counts(self.valid_rows("table"))
