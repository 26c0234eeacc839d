"""Scores against targets: counted per bin of thresholds, or kept one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.classification import labels, words
from gapless.metrics.later import CheckedLater
from gapless.metrics.rows import Column, RowState
from gapless.metrics.statistic import Slot, State
from gapless.metrics.tally import add_places

Thresholds = int | Sequence[float] | Tensor | None
IGNORED, STRANGE, BEFORE = 0, 1, 2
"""Places in a table of bins, and how many there are before the first bin, whose number is 1."""


class Rising(NamedTuple):
    """What lies at or above each threshold, from the highest threshold down.

    `tps` and `fps` are ``[K, P]`` of int64, `positives` and `negatives` ``[K]``; `thresholds` is ``[P]`` or
    ``[K, P]``. `exact` says that every score has a point of its own; those of equal scores repeat the last
    one above.
    """

    tps: Tensor
    fps: Tensor
    positives: Tensor
    negatives: Tensor
    thresholds: Tensor
    exact: bool


class Problem(NamedTuple):
    """What is scored: the task, the number of classes or labels (1 for binary), and how to read scores."""

    task: str
    classes: int
    ignore_index: int | None
    normalization: str | None
    logits: bool | None

    def check(self, batch: Batch) -> None:
        """Raises ValueError or RuntimeError for shapes and dtypes that do not fit."""
        preds, target = batch.args
        if self.task == "binary":
            labels.same_shape(batch)
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
        what = "tensor with ground truth labels but got tensor with dtype"
        if target.is_floating_point():
            raise ValueError(f"Expected argument `target` to be an int or long {what} {target.dtype}")
        what = "tensor with probability/logit scores, but got tensor with dtype"
        if not preds.is_floating_point():
            raise ValueError(f"Expected argument `preds` to be an floating {what} {preds.dtype}")

    def check_floats(self, batch: Batch) -> None:
        """The same where the target may have any type."""
        if self.task == "binary":
            labels.same_shape(batch)
        else:
            labels.check_multiclass(batch, self.classes, False)
        if not batch.args[0].is_floating_point():
            raise ValueError(
                "Expected argument `preds` to be floating tensor with probabilities/logits"
                f" but got tensor with dtype {batch.args[0].dtype}"
            )

    def _check_classes(self, preds: Tensor, target: Tensor) -> None:
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
        """``[N, K]`` of probabilities, float32 or wider; in `out` where they are not there yet."""
        preds = batch.args[0]
        if preds.dtype in (torch.float16, torch.bfloat16):
            preds = preds.float()
        preds = preds.reshape(-1, 1) if self.task == "binary" else rowwise(preds)
        if self.normalization is None:
            return preds
        kept = batch.derive(labels.kept_targets, self.ignore_index)
        if kept is not None:
            kept = rowwise(kept) if self.task == "multilabel" else kept.reshape(-1, 1)
        normalize = row_softmax if self.task == "multiclass" else torch.sigmoid
        return labels.probabilities(preds, self.logits, kept, normalize, out)

    @property
    def most(self) -> int:
        """The largest target."""
        return self.classes - 1 if self.task == "multiclass" else 1

    def targets(self, batch: Batch) -> Tensor:
        """``[N, K]`` of int64, or ``[N, 1]`` where a target is a class."""
        target: Tensor = batch.derive(labels.target_classes)
        return rowwise(target) if self.task == "multilabel" else target.reshape(-1, 1)

    def marks(self, batch: Batch) -> Tensor:
        """``[N, K]`` of int64: 1 where positive, 0 where negative, -1 where ignored, -2 for no target."""
        target = self.targets(batch)
        marks = allowed = target.clamp(0, self.most)
        if self.task == "multiclass":
            marks = (target == torch.arange(self.classes, device=target.device)).to(torch.int64)
        marks = marks.masked_fill(allowed != target, -2)
        return marks if self.ignore_index is None else marks.masked_fill(target == self.ignore_index, -1)

    def complaint(self, count: int) -> str:
        return f"Detected {words.some(count)} in `target` outside 0 to {self.most}"

    def found(self, batch: Batch) -> str | None:
        if self.task == "multiclass":
            return words.more_than_num_classes(batch, self.classes, self.ignore_index)
        return words.neither_zero_nor_one(batch, self.ignore_index)


def rowwise(value: Tensor) -> Tensor:
    """``(N, K, ...)`` as ``(N * ..., K)``."""
    return value if value.dim() == 2 else value.movedim(1, -1).reshape(-1, value.shape[1])


def row_softmax(scores: Tensor) -> Tensor:
    """``[N, C]``: the softmax over classes."""
    return scores.softmax(1)


def problem_scores(batch: Batch, problem: Problem, out: Tensor | None = None) -> Tensor:
    """For :meth:`Batch.derive`."""
    return problem.scores(batch, out)


def problem_marks(batch: Batch, problem: Problem) -> Tensor:
    """For :meth:`Batch.derive`."""
    return problem.marks(batch)


class BinnedScores(words.Labelled):
    """How many positives and negatives score between neighbouring thresholds, per class.

    The table has two places for what is ignored and what is no target; then two for each bin, of negatives
    and of positives.
    """

    one: Tensor
    edges: Tensor
    falling: Tensor
    order: Tensor
    rows: Tensor

    def __init__(self, problem: Problem, thresholds: Tensor, checked: bool) -> None:
        self.problem = self.subject = problem
        self.bins = len(thresholds) + 1
        edges, order = thresholds.sort()
        self.sorted = bool((order.diff() > 0).all())
        with torch.device("cpu"):
            lowest = torch.full((1,), -torch.inf, dtype=edges.dtype)
            self.constants = {
                "one": 1,
                "edges": torch.cat((lowest, edges)),
                "falling": thresholds.flip(0),
                "order": len(order) - 1 - order.argsort().flip(0),
                "rows": torch.arange(problem.classes) * self.bins * 2,
            }
        self.size = problem.classes * self.bins * 2
        config = (problem, tuple(thresholds.tolist()), thresholds.dtype)
        super().__init__(config, {"table": Slot((BEFORE + self.size,))}, checked)

    def count(self, batch: Batch) -> None:
        problem = self.problem
        if self.checked:
            problem.check(batch)
        scores = batch.derive(problem_scores, problem)
        edges = self.edges if self.edges.dtype == scores.dtype else self.edges.to(scores.dtype)
        bins = torch.bucketize(scores.contiguous(), edges, right=True)
        target = problem.targets(batch)
        allowed = target.clamp(0, problem.most)
        positive = allowed
        if problem.task == "multiclass":
            positive = target == torch.arange(problem.classes, device=bins.device)
        at = torch.add(positive, bins, alpha=2)
        if problem.classes > 1:
            at = at.add_(self.rows)
        at = at.masked_fill_(allowed != target, STRANGE)
        if problem.ignore_index is not None:
            at = at.masked_fill_(target == problem.ignore_index, IGNORED)
        add_places(self.state["table"], at.flatten(), self.one)

    def faults(self) -> Tensor:
        strange = self.state["table"][STRANGE]
        return strange // self.problem.classes if self.problem.task == "multiclass" else strange

    def decoded(self, state: State) -> State:
        table = state["table"]
        both = table[..., [STRANGE, IGNORED]]
        return {**state, "table": torch.cat((table[..., BEFORE:], both), -1)}

    def encoded(self, saved: State) -> State:
        table = saved["table"]
        both = table[..., [-1, -2]]
        return {**saved, "table": torch.cat((both, table[..., :-2]), -1)}

    @property
    def given(self) -> Tensor:
        """The thresholds as they were given."""
        return self.falling.flip(0)

    def rising(self, micro: bool) -> Rising:
        """At the thresholds given, from the last one to the first."""
        cells = self.state["table"][BEFORE:].view(self.problem.classes, self.bins, 2)
        if micro:
            cells = cells.sum(0, keepdim=True)
        above = cells.flip(1).cumsum(1)
        totals, above = above[:, -1], above[:, :-1]
        if not self.sorted:
            above = above[:, self.order]
        return Rising(above[..., 1], above[..., 0], totals[:, 1], totals[:, 0], self.falling, exact=False)


class KeptScores(words.Labelled, CheckedLater):
    """Every score and its mark.

    Without a capacity scores stay float64 where the first ones are; in fixed storage they are float32.
    A mark is 1, 0, or any other number where the score does not count.
    """

    low: Tensor
    high: Tensor
    kinds: Tensor
    examined_by = "mark"

    def __init__(self, problem: Problem, checked: bool, capacity: int | None) -> None:
        self.problem = self.subject = problem
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
            self._count_later(batch)
            return
        marks = batch.derive(problem_marks, self.problem)
        if self.checked:
            strange = marks[:, :1] if self.problem.task == "multiclass" else marks
            self.state["strange"].add_((strange == -2).sum())
        self.append(score=batch.derive(problem_scores, self.problem), mark=marks.to(torch.int8))

    def _count_later(self, batch: Batch) -> None:
        """Write scores and marks to where they are kept; what is strange among them is looked for later."""
        score, classes = batch.args[0], self.problem.classes
        rows = score.numel() // classes
        wide = score.dtype if score.dtype in (torch.float32, torch.float64) else torch.float32
        scores, marks = self.reserve(rows, {"score": ((classes,), wide), "mark": ((classes,), torch.int8)})
        found = batch.derive(problem_scores, self.problem, out=scores if scores.dtype == wide else None)
        if found is not scores:
            scores.copy_(found)
        if self.problem.task == "multiclass" or self.problem.ignore_index is not None:
            marks.copy_(batch.derive(problem_marks, self.problem))
        else:
            torch.clamp(self.problem.targets(batch), self.low, self.high, out=marks)

    def strange_rows(self, state: RowState) -> Tensor:
        marks = state["mark"][state.examined : state.length]
        marks = marks[:, :1] if self.problem.task == "multiclass" else marks
        if self.problem.ignore_index is not None:
            return marks == -2
        return marks.view(torch.uint8) > 1  # of which negative numbers are the largest

    def rising(self, micro: bool) -> Rising:
        """At every score there is, in a form whose size does not depend on the data."""
        self.rows_needed()
        scores, marks, there = self.read("score"), self.read("mark"), self.there()
        if scores.dim() == 1:
            scores, marks = scores.reshape(-1, 1), marks.reshape(-1, 1)
        if there is not None:
            marks = marks.masked_fill(~there.unsqueeze(1), -1)
        shape = (1, -1) if micro else (scores.shape[1], -1)
        scores, marks = (one.t().reshape(shape) for one in (scores, marks))
        ordered, order = scores.sort(dim=1, descending=True)
        return in_order(ordered, marks.gather(1, order) == self.kinds)


def rising_at(scores: Tensor, positive: Tensor, kept: Tensor) -> Rising:
    """At every one of `scores`, all three ``[K, P]``; only those that are `kept` count."""
    ordered, order = scores.sort(dim=1, descending=True)
    kinds = torch.stack((positive & kept, kept & ~positive))
    return in_order(ordered, kinds.gather(2, order.expand(2, -1, -1)))


def in_order(scores: Tensor, kinds: Tensor) -> Rising:
    """At every one of `scores`, ``[K, P]``, the highest first; ``[2, K, P]`` of bool say which are positive,
    and which negative.
    """
    counts = kinds.cumsum(2)
    totals = counts[..., -1] if counts.shape[2] else counts.sum(2)
    same = torch.zeros_like(scores, dtype=torch.bool)
    torch.eq(scores[:, 1:], scores[:, :-1], out=same[:, :-1])
    if counts.shape[
        2
    ]:  # which never fall: where the next score is the same, that above is the largest so far
        counts = counts.masked_fill_(same, 0).cummax(2).values
    return Rising(counts[0], counts[1], totals[0], totals[1], scores, exact=True)


def check_thresholds(thresholds: Thresholds) -> None:
    """Raises ValueError unless `thresholds` is None, an integer above 1, or a row of floats."""
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


def scored(problem: Problem, thresholds: Thresholds, validate_args: bool, capacity: int | None) -> Any:
    """The statistic for these thresholds: bins, or, without any, every score."""
    if validate_args:
        check_thresholds(thresholds)
        checks.optional_integer("ignore_index", problem.ignore_index)
        if problem.task != "binary":
            name = "num_classes" if problem.task == "multiclass" else "num_labels"
            checks.integer_above(name, problem.classes, 1)
    if thresholds is None:
        return KeptScores(problem, validate_args, capacity)
    with torch.device("cpu"):
        if isinstance(thresholds, int):
            row = torch.linspace(0, 1, thresholds)
        else:
            row = thresholds.cpu() if isinstance(thresholds, Tensor) else torch.tensor(thresholds)
    return BinnedScores(problem, row, validate_args)
