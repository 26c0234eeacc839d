"""Hinge loss."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.classification import words
from gapless.metrics.classification.predictions import PredictionMetric
from gapless.metrics.classification.scores import Problem, problem_marks, problem_scores
from gapless.metrics.statistic import Slot
from gapless.metrics.tasks import Task

MODES = ("crammer-singer", "one-vs-all")


class Margins(words.Labelled):
    """How far scores fall short of a margin of 1, summed over samples; per class where each stands alone."""

    def __init__(self, problem: Problem, squared: bool, alone: bool, checked: bool) -> None:
        self.problem = self.subject = problem
        self.squared = squared
        self.alone = alone
        shape = (problem.classes,) if alone else ()
        slots = {"sum": Slot(shape, torch.float64), "seen": Slot(), "strange": Slot()}
        super().__init__((problem, squared, alone), slots, checked)

    def count(self, batch: Batch) -> None:
        if self.checked:
            self.problem.check_floats(batch)
        scores = batch.derive(problem_scores, self.problem)
        marks = batch.derive(problem_marks, self.problem)
        true, kept = marks == 1, marks[:, :1] >= 0
        short = shortfall(scores, true, self.alone or self.problem.task == "binary", self.squared)
        short = short.masked_fill(~kept, 0.0).double().sum(0)
        self.state["sum"].add_(short if self.alone else short[0])
        self.state["seen"].add_(kept.sum())
        self.state["strange"].add_((marks[:, 0] == -2).sum())


def shortfall(scores: Tensor, true: Tensor, alone: bool, squared: bool) -> Tensor:
    """How far scores ``(N, C)`` fall short of a margin of 1: each, or that of the class, ``(N, 1)``."""
    if alone:
        margin = torch.where(true, scores, -scores)
    else:
        others = scores.masked_fill(true, -math.inf).amax(1, keepdim=True)
        margin = (scores * true).sum(1, keepdim=True) - others
    short = (1 - margin).clamp(min=0)
    return short.square() if squared else short


class Hinge(PredictionMetric, abstract=True):
    """The mean of what scores fall short of a margin of 1.

    Args:
        squared: whether it is squared.
        multiclass_mode: ``"crammer-singer"`` for the margin between the class and the best other one,
            ``"one-vs-all"`` for a value per class against the others.
    """

    torchmetrics_slots = "measures:f=sum total:i=seen"

    needs_scores = True
    beyond = "logits"
    is_differentiable = True
    higher_is_better = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    margins: Margins

    def value(self) -> Tensor:
        return (self.margins.state["sum"] / self.margins.state["seen"]).to(self.dtype)

    def _measure(
        self,
        classes: int,
        squared: bool,
        alone: bool,
        ignore_index: int | None,
        validate_args: bool,
        options: dict[str, Any],
    ) -> None:
        logits = options.pop("logits", None)
        self._begin(ignore_index, validate_args, options, classes)
        self.squared = squared
        problem = Problem(self.task, classes, ignore_index, "sigmoid", logits)
        self.use("margins", Margins(problem, squared, alone, validate_args))


def check_squared(squared: Any) -> None:
    """Raises ValueError unless `squared` is a bool."""
    if not isinstance(squared, bool):
        raise ValueError(f"Expected argument `squared` to be an bool but got {squared}")


class BinaryHingeLoss(Hinge):
    """The mean of what scores fall short of a margin of 1."""

    def __init__(
        self,
        squared: bool = False,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        if validate_args:
            check_squared(squared)
        self._measure(1, squared, False, ignore_index, validate_args, kwargs)


class MulticlassHingeLoss(Hinge):
    """The mean of what scores of classes fall short of a margin of 1."""

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
            checks.integer_above("num_classes", num_classes, 1)
            checks.one_of("multiclass_mode", multiclass_mode, MODES, stop=".")
        alone = multiclass_mode == "one-vs-all"
        self._measure(num_classes, squared, alone, ignore_index, validate_args, kwargs)
        self.multiclass_mode = multiclass_mode


class HingeLoss(Task):
    """Hinge loss of a task, binary or multiclass."""
