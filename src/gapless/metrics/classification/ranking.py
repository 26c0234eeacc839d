"""Metrics of how scores rank the labels of a sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.classification import label_messages, labels
from gapless.metrics.classification.predictions import PredictionMetric
from gapless.metrics.classification.scores import Problem, problem_marks, problem_scores
from gapless.metrics.statistic import Slot

RankingMeasure = Callable[[Tensor, Tensor], tuple[Tensor, Tensor | int]]
"""Maps scores and marks, ``[N, L]`` each, to a sum over samples and the number of samples."""


class RankingSums(label_messages.LabelStatistic):
    """The sum of a ranking measure over samples, and the number of samples."""

    def __init__(self, problem: Problem, measure: RankingMeasure, checked: bool) -> None:
        self.problem = self.label_rules = problem
        self.measure = measure
        slots = {"sum": Slot((), torch.float64), "seen": Slot(), "strange": Slot()}
        super().__init__((problem, measure), slots, checked)

    def count(self, batch: Batch) -> None:
        if self.checked:
            batch.derive(labels.check_multilabel, self.problem.classes, False)
            preds = batch.args[0]
            if not preds.is_floating_point():
                raise ValueError(
                    f"Expected preds tensor to be floating point, but received input with dtype {preds.dtype}"
                )
        scores = batch.derive(problem_scores, self.problem)
        marks = batch.derive(problem_marks, self.problem)
        if self.problem.ignore_index is not None:  # Ignored labels rank last.
            scores = scores.masked_fill(marks == -1, -4.0 * self.problem.classes)
        total, samples = self.measure(scores, marks)
        self.state["sum"].add_(total)
        self.state["seen"].add_(samples)
        self.state["strange"].add_((marks == -2).sum())


def coverage(scores: Tensor, marks: Tensor) -> tuple[Tensor, int]:
    """Return the sum over samples of how many top-scored labels it takes to include all true ones."""
    lowest = scores.masked_fill(marks == 0, math.inf).amin(1, keepdim=True)
    return (scores >= lowest).sum(), len(scores)


def ranked_precision(scores: Tensor, marks: Tensor) -> tuple[Tensor, int]:
    """Return the sum over samples of the ranking average precision.

    For each true label this is the share of true ones among the labels that score at least as high.
    """
    ordered, order = scores.sort(dim=1, descending=True)
    true = (marks == 1).gather(1, order)
    last = torch.ones_like(true)
    last[:, :-1] = ordered[:, 1:] != ordered[:, :-1]
    index = torch.arange(scores.shape[1], device=scores.device)
    # Labels of equal scores share the rank of the last of them.
    end = index.expand_as(order).masked_fill(~last, scores.shape[1]).flip(1).cummin(1).values.flip(1)
    share = true.cumsum(1).gather(1, end) / (end + 1)
    relevant = true.sum(1)
    is_mixed = (relevant > 0) & (relevant < scores.shape[1])
    mean = (share * true).sum(1) / relevant.clamp(min=1)
    return torch.where(is_mixed, mean, 1.0).double().sum(), len(scores)


def ranking_loss(scores: Tensor, marks: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum over samples of the share of (true, false) label pairs in the wrong order."""
    rows, width = scores.shape
    true = marks == 1
    relevant = true.sum(1)
    is_mixed = (relevant > 0) & (relevant < width)
    ranks = scores.argsort(dim=1).argsort(dim=1)
    wrong = ((width - ranks) * true).sum(1) - 0.5 * relevant * (relevant + 1)
    pairs = relevant * (width - relevant)
    loss = (wrong / pairs).masked_fill(~is_mixed, 0.0)
    return loss.double().sum(), torch.where(is_mixed.any(), rows, min(rows, 1))


class RankingMetric(PredictionMetric, abstract=True):
    """A metric of how scores rank the labels of each sample. A subclass sets `measure`.

    Args:
        ignore_index: a target that is neither true nor false.
    """

    torchmetrics_slots = (("measure", "sum"), ("total", "seen"))

    needs_scores = True
    more_arguments = ("logits",)
    task = "multilabel"
    plot_lower_bound: float | None = 0.0
    plot_upper_bound: float | None = 1.0
    measure: RankingMeasure
    ranked: RankingSums

    def __init__(
        self,
        num_labels: int,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        logits = kwargs.pop("logits", None)
        self._set_up(ignore_index, validate_args, kwargs, num_labels)
        if validate_args:
            checks.check_integer_above("num_labels", num_labels, 1)
        problem = Problem("multilabel", num_labels, ignore_index, "sigmoid", logits)
        self.use("ranked", RankingSums(problem, type(self).measure, validate_args))

    def value(self) -> Tensor:
        return (self.ranked.state["sum"] / self.ranked.state["seen"]).to(self.dtype)


class MultilabelCoverageError(RankingMetric):
    """How many of the highest-scored labels it takes to include all true ones."""

    higher_is_better = False
    measure = staticmethod(coverage)


class MultilabelRankingAveragePrecision(RankingMetric):
    """The share of true labels among those that score at least as high as a true one, averaged over these."""

    measure = staticmethod(ranked_precision)


class MultilabelRankingLoss(RankingMetric):
    """The share of pairs of a true and a false label in which the false one scores higher."""

    higher_is_better = False
    measure = staticmethod(ranking_loss)
