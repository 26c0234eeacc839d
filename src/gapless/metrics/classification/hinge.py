"""Hinge loss."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.classification import label_messages
from gapless.metrics.classification.predictions import PredictionMetric
from gapless.metrics.classification.scores import Problem, problem_marks, problem_scores
from gapless.metrics.statistic import Slot
from gapless.metrics.tasks import Task

MULTICLASS_MODES = ("crammer-singer", "one-vs-all")
"""Accepted values of `multiclass_mode`."""


class MarginSums(label_messages.LabelStatistic):
    """The sum over samples of how far scores fall short of a margin of 1; per class if `one_vs_all`."""

    def __init__(self, problem: Problem, squared: bool, one_vs_all: bool, checked: bool) -> None:
        self.problem = self.label_rules = problem
        self.breadth = problem.breadth
        self.squared = squared
        self.one_vs_all = one_vs_all
        shape = (problem.classes,) if one_vs_all else ()
        slots = {"sum": Slot(shape, torch.float64), "seen": Slot(), "strange": Slot()}
        super().__init__((problem, squared, one_vs_all), slots, checked)

    def count(self, batch: Batch) -> None:
        if self.checked:
            self.problem.check_floats(batch)
        scores = batch.derive(problem_scores, self.problem)
        marks = batch.derive(problem_marks, self.problem)
        true, kept = marks == 1, marks[:, :1] >= 0
        short = shortfall(scores, true, self.one_vs_all or self.problem.task == "binary", self.squared)
        short = short.masked_fill(~kept, 0.0).double().sum(0)
        self.state["sum"].add_(short if self.one_vs_all else short[0])
        self.state["seen"].add_(kept.sum())
        self.state["strange"].add_((marks[:, 0] == -2).sum())


def shortfall(scores: Tensor, true: Tensor, one_vs_all: bool, squared: bool) -> Tensor:
    """Return how far scores ``(N, C)`` fall short of a margin of 1.

    Returns ``(N, C)`` with `one_vs_all`; else ``(N, 1)``, from the margin between the true class and the best
    other one.
    """
    if one_vs_all:
        margin = torch.where(true, scores, -scores)
    else:
        best_other = scores.masked_fill(true, -math.inf).amax(1, keepdim=True)
        margin = (scores * true).sum(1, keepdim=True) - best_other
    short = (1 - margin).clamp(min=0)
    return short.square() if squared else short


class HingeMetric(PredictionMetric, abstract=True):
    """The mean shortfall of scores from a margin of 1.

    Args:
        squared: whether the shortfall is squared.
        multiclass_mode: ``"crammer-singer"`` for the margin between the true class and the best other one,
            ``"one-vs-all"`` for a value per class against all others.
    """

    torchmetrics_slots = (("measures", "sum"), ("total", "seen", "int64"))

    needs_scores = True
    more_arguments = ("logits",)
    is_differentiable = True
    higher_is_better = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    margins: MarginSums

    def value(self) -> Tensor:
        return (self.margins.state["sum"] / self.margins.state["seen"]).to(self.dtype)

    def _set_up_margins(
        self,
        classes: int,
        squared: bool,
        one_vs_all: bool,
        ignore_index: int | None,
        validate_args: bool,
        options: dict[str, Any],
    ) -> None:
        """Set the options, and set up the sums of margins."""
        logits = options.pop("logits", None)
        self._set_up(ignore_index, validate_args, options, classes)
        self.squared = squared
        problem = Problem(self.task, classes, ignore_index, "sigmoid", logits)
        self.use("margins", MarginSums(problem, squared, one_vs_all, validate_args))


def check_squared(squared: Any) -> None:
    """Raise ValueError unless `squared` is a bool."""
    if not isinstance(squared, bool):
        raise ValueError(f"Expected argument `squared` to be an bool but got {squared}")


class BinaryHingeLoss(HingeMetric):
    """The mean shortfall of scores from a margin of 1."""

    def __init__(
        self,
        squared: bool = False,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        if validate_args:
            check_squared(squared)
        self._set_up_margins(1, squared, False, ignore_index, validate_args, kwargs)


class MulticlassHingeLoss(HingeMetric):
    """The mean shortfall of class scores from a margin of 1."""

    task = "multiclass"

    def __init__(
        self,
        num_classes: int,
        squared: bool = False,
        multiclass_mode: str = "crammer-singer",
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        if validate_args:
            check_squared(squared)
            checks.check_integer_above("num_classes", num_classes, 1)
            checks.check_one_of("multiclass_mode", multiclass_mode, MULTICLASS_MODES, stop=".")
        one_vs_all = multiclass_mode == "one-vs-all"
        self._set_up_margins(num_classes, squared, one_vs_all, ignore_index, validate_args, kwargs)
        self.multiclass_mode = multiclass_mode


class HingeLoss(Task):
    """Hinge loss of a task, binary or multiclass."""
