"""Scores against targets: counted per bin of thresholds, or kept one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.classification import labels, words
from gapless.metrics.rows import Column, Rows
from gapless.metrics.statistic import Slot

Thresholds = int | Sequence[float] | Tensor | None


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

    def scores(self, batch: Batch) -> Tensor:
        """``[N, K]`` of probabilities, float32 or wider."""
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
        return labels.probabilities(preds, self.logits, kept, normalize)

    def marks(self, batch: Batch) -> Tensor:
        """``[N, K]`` of int64: 1 where positive, 0 where negative, -1 where ignored, -2 for no target."""
        target = batch.derive(labels.target_classes)
        if self.task == "multiclass":
            target = target.reshape(-1, 1)
            classes = torch.arange(self.classes, device=target.device)
            marks = (target == classes).to(torch.int64)
            strange = (target < 0) | (target >= self.classes)
        else:
            target = target.reshape(-1, 1) if self.task == "binary" else rowwise(target)
            marks = target.clamp(0, 1)
            strange = marks != target
        marks = marks.masked_fill(strange, -2)
        return marks if self.ignore_index is None else marks.masked_fill(target == self.ignore_index, -1)

    def complaint(self, count: int) -> str:
        most = self.classes - 1 if self.task == "multiclass" else 1
        return f"Detected {words.some(count)} in `target` outside 0 to {most}"

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


def problem_scores(batch: Batch, problem: Problem) -> Tensor:
    """For :meth:`Batch.derive`."""
    return problem.scores(batch)


def problem_marks(batch: Batch, problem: Problem) -> Tensor:
    """For :meth:`Batch.derive`."""
    return problem.marks(batch)


class BinnedScores(words.Labelled):
    """How many positives and negatives score between neighbouring thresholds, per class."""

    one: Tensor
    edges: Tensor
    given: Tensor
    back: Tensor
    rows: Tensor

    def __init__(self, problem: Problem, thresholds: Tensor, checked: bool) -> None:
        self.problem = self.subject = problem
        self.bins = len(thresholds) + 1
        edges, order = thresholds.sort()
        places = torch.arange(problem.classes) * self.bins
        self.constants = {
            "one": 1,
            "edges": edges,
            "given": thresholds,
            "back": order.argsort(),
            "rows": places,
        }
        self.size = problem.classes * self.bins * 2
        config = (problem, tuple(thresholds.tolist()), thresholds.dtype)
        super().__init__(config, {"table": Slot((self.size + 2,))}, checked)

    def count(self, batch: Batch) -> None:
        if self.checked:
            self.problem.check(batch)
        scores = batch.derive(problem_scores, self.problem)
        marks = batch.derive(problem_marks, self.problem)
        edges = self.edges if self.edges.dtype == scores.dtype else self.edges.to(scores.dtype)
        at = torch.bucketize(scores.contiguous(), edges, right=True).add_(self.rows).mul_(2).add_(marks)
        at = torch.where(marks < 0, marks + (self.size + 2), at).flatten()
        self.state["table"].scatter_add_(0, at, self.one.expand_as(at))

    def faults(self) -> Tensor:
        return self.state["table"][-2] // (self.problem.classes if self.problem.task == "multiclass" else 1)

    def rising(self, micro: bool) -> Rising:
        """At the thresholds given, from the last one to the first."""
        table = self.state["table"][: self.size].view(self.problem.classes, self.bins, 2)
        if micro:
            table = table.sum(0, keepdim=True)
        above = table.flip(1).cumsum(1)[:, :-1].flip(1)[:, self.back].flip(1)
        totals = table.sum(1)
        return Rising(
            above[..., 1], above[..., 0], totals[:, 1], totals[:, 0], self.given.flip(0), exact=False
        )


class KeptScores(words.Labelled, Rows):
    """Every score and its mark.

    Without a capacity scores stay float64 where the first ones are; in fixed storage they are float32.
    """

    def __init__(self, problem: Problem, checked: bool, capacity: int | None) -> None:
        self.problem = self.subject = problem
        shape = (problem.classes,)
        score: Column | None = None if capacity is None else (shape, torch.float32)
        columns = {"score": score, "mark": (shape, torch.int8)}
        super().__init__((problem,), columns, capacity, checked)

    def count(self, batch: Batch) -> None:
        if self.checked:
            self.problem.check(batch)
        marks = batch.derive(problem_marks, self.problem)
        if self.checked:
            strange = marks[:, 0] == -2 if self.problem.task == "multiclass" else marks == -2
            self.state["strange"].add_(strange.sum())
        self.append(score=batch.derive(problem_scores, self.problem), mark=marks.to(torch.int8))

    def rising(self, micro: bool) -> Rising:
        """At every score there is, in a form whose size does not depend on the data."""
        self.rows_needed()
        scores, marks, there = self.read("score"), self.read("mark"), self.there()
        if scores.dim() == 1:
            scores, marks = scores.reshape(-1, 1), marks.reshape(-1, 1)
        kept = marks >= 0 if there is None else (marks >= 0) & there.unsqueeze(1)
        shape = (1, -1) if micro else (scores.shape[1], -1)
        return rising_at(*(one.t().reshape(shape) for one in (scores, marks == 1, kept)))


def rising_at(scores: Tensor, positive: Tensor, kept: Tensor) -> Rising:
    """At every one of `scores`, all three ``[K, N]``; only those that are `kept` count."""
    ordered, order = scores.masked_fill(~kept, -torch.inf).sort(dim=1, descending=True)
    kept = kept.gather(1, order)
    positive = positive.gather(1, order) & kept
    tps, fps = positive.cumsum(1), (kept & ~positive).cumsum(1)
    last = torch.ones_like(kept)
    last[:, :-1] = ordered[:, 1:] != ordered[:, :-1]
    totals = [one[:, -1] if one.shape[1] else one.sum(1) for one in (tps, fps)]
    return Rising(carried(tps, last), carried(fps, last), totals[0], totals[1], ordered, exact=True)


def carried(values: Tensor, last: Tensor) -> Tensor:
    """`values`, which never fall, where `last` holds, and the one before elsewhere."""
    return values.masked_fill(~last, 0).cummax(1).values if values.shape[1] else values


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
