"""Scores with their targets: counted per bin between thresholds, or kept one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.breadth import Breadth
from gapless.metrics.classification import label_messages, labels
from gapless.metrics.later import CheckedLater
from gapless.metrics.rows import Column, RowState
from gapless.metrics.statistic import Slot, State
from gapless.metrics.tally import count_indices

Thresholds = int | Sequence[float] | Tensor | None
IGNORED_CELL, INVALID_CELL, CELLS_BEFORE_BINS = 0, 1, 2
"""Cells of a bin table for ignored and for invalid targets, and the number of cells before the first bin."""


class CumulativeCounts(NamedTuple):
    """True and false positives at each threshold, from the highest threshold down.

    `tps` and `fps` are ``[K, P]`` of int64, `positives` and `negatives` ``[K]``; `thresholds` is ``[P]`` or
    ``[K, P]``. If `exact`, every score has a point of its own; among equal scores only the last has new
    counts.
    """

    tps: Tensor
    fps: Tensor
    positives: Tensor
    negatives: Tensor
    thresholds: Tensor
    exact: bool


class Problem(NamedTuple):
    """The task, the number of classes or labels (1 for binary), and how to interpret scores and targets."""

    task: str
    classes: int
    ignore_index: int | None
    normalization: str | None
    logits: bool | None

    def check(self, batch: Batch) -> None:
        """Raise ValueError or RuntimeError for shapes and dtypes that do not fit the task."""
        preds, target = batch.args
        if self.task == "binary":
            labels.check_same_shape(batch)
        elif self.task == "multilabel":
            labels.check_multilabel(batch, self.classes, False)
        else:
            if preds.dim() != target.dim() + 1:
                raise ValueError(
                    "Expected `preds` to have one more dimension than `target` "
                    f"but got {preds.dim()} and {target.dim()}"
                )
            self._check_classes(preds, target)
            return
        expected = "tensor with ground truth labels but got tensor with dtype"
        if target.is_floating_point():
            raise ValueError(f"Expected argument `target` to be an int or long {expected} {target.dtype}")
        expected = "tensor with probability/logit scores, but got tensor with dtype"
        if not preds.is_floating_point():
            raise ValueError(f"Expected argument `preds` to be an floating {expected} {preds.dtype}")

    def check_floats(self, batch: Batch) -> None:
        """Raise ValueError or RuntimeError for shapes that do not fit, or predictions that are not floats."""
        if self.task == "binary":
            labels.check_same_shape(batch)
        else:
            labels.check_multiclass(batch, self.classes, False)
        if not batch.args[0].is_floating_point():
            raise ValueError(
                "Expected argument `preds` to be floating tensor with probabilities/logits"
                f" but got tensor with dtype {batch.args[0].dtype}"
            )

    def _check_classes(self, preds: Tensor, target: Tensor) -> None:
        """Raise ValueError unless these are scores ``(N, C, ...)`` and integer targets ``(N, ...)``."""
        if target.is_floating_point():
            raise ValueError(
                "Expected argument `target` to be an int or long tensor, but got tensor with dtype "
                f"{target.dtype}"
            )
        if not preds.is_floating_point():
            raise ValueError(f"Expected `preds` to be a float tensor, but got {preds.dtype}")
        if preds.shape[1] != self.classes:
            raise ValueError(
                "Expected `preds.shape[1]` to be equal to the number of classes but"
                f" got {preds.shape[1]} and {self.classes}."
            )
        if preds.shape[:1] + preds.shape[2:] != target.shape:
            raise ValueError(
                "Expected the shape of `preds` should be (N, C, ...) and the shape of `target` should be "
                f"(N, ...) but got {preds.shape} and {target.shape}"
            )

    def scores(self, batch: Batch, out: Tensor | None = None) -> Tensor:
        """Return probabilities ``[N, K]``, float32 or wider; written to `out` if they must be computed."""
        preds = batch.args[0]
        if preds.dtype in (torch.float16, torch.bfloat16):
            preds = preds.float()
        preds = preds.reshape(-1, 1) if self.task == "binary" else as_rows(preds)
        if self.normalization is None:
            return preds
        kept = batch.derive(labels.kept_mask, self.ignore_index)
        if kept is not None:
            kept = as_rows(kept) if self.task == "multilabel" else kept.reshape(-1, 1)
        normalize = row_softmax if self.task == "multiclass" else torch.sigmoid
        return labels.probabilities(preds, self.logits, kept, normalize, out)

    @property
    def breadth(self) -> Breadth:
        """What there are scores for."""
        return Breadth("label" if self.task == "multilabel" else "class", self.classes)

    @property
    def max_target(self) -> int:
        """The largest valid target."""
        return self.classes - 1 if self.task == "multiclass" else 1

    def targets(self, batch: Batch) -> Tensor:
        """Return the targets as int64: ``[N, K]`` for labels, ``[N, 1]`` for classes."""
        target: Tensor = batch.derive(labels.target_classes)
        return as_rows(target) if self.task == "multilabel" else target.reshape(-1, 1)

    def marks(self, batch: Batch) -> Tensor:
        """Return marks, ``[N, K]`` of int64: 1 for positive, 0 negative, -1 ignored, -2 an invalid target."""
        target = self.targets(batch)
        marks = allowed = target.clamp(0, self.max_target)
        if self.task == "multiclass":
            marks = (target == torch.arange(self.classes, device=target.device)).to(torch.int64)
        marks = marks.masked_fill(allowed != target, -2)
        return marks if self.ignore_index is None else marks.masked_fill(target == self.ignore_index, -1)

    def complaint(self, count: int) -> str:
        return f"Detected {label_messages.count_noun(count)} in `target` outside 0 to {self.max_target}"

    def describe_values(self, batch: Batch) -> str | None:
        if self.task == "multiclass":
            return label_messages.too_many_targets_message(batch, self.classes, self.ignore_index)
        return label_messages.not_binary_message(batch, self.ignore_index)


def as_rows(value: Tensor) -> Tensor:
    """Reshape ``(N, K, ...)`` to ``(N * ..., K)``."""
    return value if value.dim() == 2 else value.movedim(1, -1).reshape(-1, value.shape[1])


def row_softmax(scores: Tensor) -> Tensor:
    """Return the softmax over classes, ``[N, C]``."""
    return scores.softmax(1)


def problem_scores(batch: Batch, problem: Problem, out: Tensor | None = None) -> Tensor:
    """Return the probabilities of a batch; a function for :meth:`Batch.derive`."""
    return problem.scores(batch, out)


def problem_marks(batch: Batch, problem: Problem) -> Tensor:
    """Return the marks of a batch; a function for :meth:`Batch.derive`."""
    return problem.marks(batch)


class BinnedScores(label_messages.LabelStatistic):
    """Per class, the numbers of positives and negatives that score between neighbouring thresholds.

    The table begins with a cell for ignored and one for invalid targets; then each bin has two cells, for
    negatives and for positives.
    """

    unit: Tensor
    edges: Tensor
    reversed_thresholds: Tensor
    order: Tensor
    rows: Tensor

    def __init__(self, problem: Problem, thresholds: Tensor, checked: bool) -> None:
        self.problem = self.label_rules = problem
        self.breadth = problem.breadth
        self.bins = len(thresholds) + 1
        edges, order = thresholds.sort()
        self.sorted = bool((order.diff() > 0).all())
        with torch.device("cpu"):
            lowest = torch.full((1,), -torch.inf, dtype=edges.dtype)
            self.constants = {
                "unit": 1,
                "edges": torch.cat((lowest, edges)),
                "reversed_thresholds": thresholds.flip(0),
                "order": len(order) - 1 - order.argsort().flip(0),
                "rows": torch.arange(problem.classes) * self.bins * 2,
            }
        self.size = problem.classes * self.bins * 2
        config = (problem, tuple(thresholds.tolist()), thresholds.dtype)
        super().__init__(config, {"table": Slot((CELLS_BEFORE_BINS + self.size,))}, checked)

    def count(self, batch: Batch) -> None:
        problem = self.problem
        if self.checked:
            problem.check(batch)
        scores = batch.derive(problem_scores, problem)
        edges = self.edges if self.edges.dtype == scores.dtype else self.edges.to(scores.dtype)
        bins = torch.bucketize(scores.contiguous(), edges, right=True)
        target = problem.targets(batch)
        allowed = target.clamp(0, problem.max_target)
        positive = allowed
        if problem.task == "multiclass":
            positive = target == torch.arange(problem.classes, device=bins.device)
        cells = torch.add(positive, bins, alpha=2)
        if problem.classes > 1:
            cells = cells.add_(self.rows)
        cells = cells.masked_fill_(allowed != target, INVALID_CELL)
        if problem.ignore_index is not None:
            cells = cells.masked_fill_(target == problem.ignore_index, IGNORED_CELL)
        count_indices(self.state["table"], cells.flatten(), self.unit)

    def faults(self) -> Tensor:
        invalid = self.state["table"][INVALID_CELL]
        return invalid // self.problem.classes if self.problem.task == "multiclass" else invalid

    def decode(self, state: State) -> State:
        table = state["table"]
        extra = table[..., [INVALID_CELL, IGNORED_CELL]]
        return {**state, "table": torch.cat((table[..., CELLS_BEFORE_BINS:], extra), -1)}

    def encode(self, saved: State) -> State:
        table = saved["table"]
        extra = table[..., [-1, -2]]
        return {**saved, "table": torch.cat((extra, table[..., :-2]), -1)}

    def size_of(self, slot: str, shape: Sequence[int], own: Sequence[int]) -> str:
        """Return the size of a saved table: with as many thresholds as here, or with as many classes."""
        cells, classes = (math.prod(shape) - CELLS_BEFORE_BINS) // 2, self.problem.classes
        classes_there = cells // self.bins if cells % self.bins == 0 else 0
        thresholds_there = cells // classes - 1 if cells % classes == 0 else 0
        nouns = "labels" if self.problem.task == "multilabel" else "classes"
        if classes_there == classes:
            return f"{classes} {nouns} and {self.bins - 1} thresholds"
        sizes = {nouns: classes_there, "thresholds": thresholds_there}
        words = [f"{number} {name}" for name, number in sizes.items() if number > 0]
        return " or ".join(words) or f"{cells} bins of {nouns} between thresholds"

    @property
    def thresholds_as_passed(self) -> Tensor:
        """The thresholds in the order the user passed them."""
        return self.reversed_thresholds.flip(0)

    def cumulative_counts(self, micro: bool) -> CumulativeCounts:
        """Return the counts at the thresholds, from the last one to the first; `micro` sums over classes."""
        cells = self.state["table"][CELLS_BEFORE_BINS:].view(self.problem.classes, self.bins, 2)
        if micro:
            cells = cells.sum(0, keepdim=True)
        reached = cells.flip(1).cumsum(1)
        totals, reached = reached[:, -1], reached[:, :-1]
        if not self.sorted:
            reached = reached[:, self.order]
        return CumulativeCounts(
            reached[..., 1],
            reached[..., 0],
            totals[:, 1],
            totals[:, 0],
            self.reversed_thresholds,
            exact=False,
        )


class KeptScores(label_messages.LabelStatistic, CheckedLater):
    """Every score and its mark: 1 for positive, 0 for negative, anything else for scores that do not count.

    Without a capacity scores stay float64 if the first ones are; in fixed storage they are float32.
    """

    low: Tensor
    high: Tensor
    kinds: Tensor
    examined_by = "mark"

    def __init__(self, problem: Problem, checked: bool, capacity: int | None) -> None:
        self.problem = self.label_rules = problem
        self.breadth = problem.breadth
        shape = (problem.classes,)
        score: Column | None = None if capacity is None else (shape, torch.float32)
        columns = {"score": score, "mark": (shape, torch.int8)}
        kinds = torch.tensor([1, 0], dtype=torch.int8, device="cpu").view(2, 1, 1)
        self.constants = {"low": -1, "high": 2, "kinds": kinds}
        super().__init__((problem,), columns, capacity, checked)

    def count(self, batch: Batch) -> None:
        if self.checked:
            self.problem.check(batch)
        if self.later(batch.args[0].numel()):
            self._store_unchecked(batch)
            return
        marks = batch.derive(problem_marks, self.problem)
        if self.checked:
            invalid = marks[:, :1] if self.problem.task == "multiclass" else marks
            self.state["strange"].add_((invalid == -2).sum())
        self.append(score=batch.derive(problem_scores, self.problem), mark=marks.to(torch.int8))

    def _store_unchecked(self, batch: Batch) -> None:
        """Store scores and marks without checking them; invalid targets are looked for later."""
        score, classes = batch.args[0], self.problem.classes
        rows = score.numel() // classes
        wide = score.dtype if score.dtype in (torch.float32, torch.float64) else torch.float32
        scores, marks = self.reserve(rows, {"score": ((classes,), wide), "mark": ((classes,), torch.int8)})
        computed = batch.derive(problem_scores, self.problem, out=scores if scores.dtype == wide else None)
        if computed is not scores:
            scores.copy_(computed)
        if self.problem.task == "multiclass" or self.problem.ignore_index is not None:
            marks.copy_(batch.derive(problem_marks, self.problem))
        else:
            torch.clamp(self.problem.targets(batch), self.low, self.high, out=marks)

    def strange_rows(self, state: RowState) -> Tensor:
        marks = state["mark"][state.examined : state.length]
        marks = marks[:, :1] if self.problem.task == "multiclass" else marks
        if self.problem.ignore_index is not None:
            return marks == -2
        return marks.view(torch.uint8) > 1  # negative numbers become the largest

    def cumulative_counts(self, micro: bool) -> CumulativeCounts:
        """Return the counts at every score, in shapes that do not depend on values; `micro` pools classes."""
        self.require_rows()
        scores, marks, is_kept = self.read("score"), self.read("mark"), self.valid_mask()
        if scores.dim() == 1:
            scores, marks = scores.reshape(-1, 1), marks.reshape(-1, 1)
        if is_kept is not None:
            marks = marks.masked_fill(~is_kept.unsqueeze(1), -1)
        shape = (1, -1) if micro else (scores.shape[1], -1)
        scores, marks = (values.t().reshape(shape) for values in (scores, marks))
        ordered, order = scores.sort(dim=1, descending=True)
        return cumulate_sorted(ordered, marks.gather(1, order) == self.kinds)


def cumulate(scores: Tensor, positive: Tensor, kept: Tensor) -> CumulativeCounts:
    """Return the counts at every one of `scores`; all are ``[K, P]``, and only `kept` scores count."""
    ordered, order = scores.sort(dim=1, descending=True)
    masks = torch.stack((positive & kept, kept & ~positive))
    return cumulate_sorted(ordered, masks.gather(2, order.expand(2, -1, -1)))


def cumulate_sorted(scores: Tensor, masks: Tensor) -> CumulativeCounts:
    """Return the counts at every one of `scores`, ``[K, P]``, sorted from the highest.

    `masks`, ``[2, K, P]`` of bool, mark the positives and the negatives.
    """
    counts = masks.cumsum(2)
    totals = counts[..., -1] if counts.shape[2] else counts.sum(2)
    equals_next = torch.zeros_like(scores, dtype=torch.bool)
    torch.eq(scores[:, 1:], scores[:, :-1], out=equals_next[:, :-1])
    # Only the last of equal scores gets new counts: the others take the largest so far, as counts never fall.
    if counts.shape[2]:
        counts = counts.masked_fill_(equals_next, 0).cummax(2).values
    return CumulativeCounts(counts[0], counts[1], totals[0], totals[1], scores, exact=True)


def check_thresholds(thresholds: Thresholds) -> None:
    """Raise ValueError unless `thresholds` is None, an integer above 1, or a row of floats."""
    if thresholds is not None and not isinstance(thresholds, (list, int, Tensor)):
        raise ValueError(
            "Expected argument `thresholds` to either be an integer, list of floats or tensor of floats,"
            f" but got {thresholds}"
        )
    if isinstance(thresholds, int) and thresholds < 2:
        raise ValueError(
            f"If argument `thresholds` is an integer, expected it to be larger than 1, but got {thresholds}"
        )
    if isinstance(thresholds, list) and not all(isinstance(t, float) and 0 <= t <= 1 for t in thresholds):
        raise ValueError(
            "If argument `thresholds` is a list, expected all elements to be floats in the [0,1] range,"
            f" but got {thresholds}"
        )
    if isinstance(thresholds, Tensor) and thresholds.dim() != 1:
        raise ValueError("If argument `thresholds` is an tensor, expected the tensor to be 1d")


def make_score_statistic(
    problem: Problem, thresholds: Thresholds, validate_args: bool, capacity: int | None
) -> Any:
    """Create the statistic: bins between `thresholds`, or every score if that is None."""
    if validate_args:
        check_thresholds(thresholds)
        checks.check_optional_integer("ignore_index", problem.ignore_index)
        if problem.task != "binary":
            name = "num_classes" if problem.task == "multiclass" else "num_labels"
            checks.check_integer_above(name, problem.classes, 1)
    if thresholds is None:
        return KeptScores(problem, validate_args, capacity)
    with torch.device("cpu"):
        if isinstance(thresholds, int):
            row = torch.linspace(0, 1, thresholds)
        else:
            row = thresholds.cpu() if isinstance(thresholds, Tensor) else torch.tensor(thresholds)
    return BinnedScores(problem, row, validate_args)
