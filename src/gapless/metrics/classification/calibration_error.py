"""How far confidence is from accuracy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.breadth import Breadth
from gapless.metrics.classification import label_messages, labels
from gapless.metrics.classification.predictions import PredictionMetric
from gapless.metrics.classification.scores import Problem, problem_marks, problem_scores
from gapless.metrics.statistic import Slot
from gapless.metrics.tasks import Task

EDGE_DTYPES = (torch.float32, torch.float64)
"""Dtypes with bin edges of their own: float64 edges rounded to float32 would put 0.9 in another bin."""


class ConfidenceBins(label_messages.LabelStatistic):
    """Per bin of confidence: the number of predictions, their summed confidence, and the correct ones.

    The last cell holds ignored predictions and those with an invalid target.
    """

    unit: Tensor
    edges: Tensor
    fine_edges: Tensor

    def __init__(self, problem: Problem, bins: int, checked: bool) -> None:
        self.problem = self.label_rules = problem
        self.breadth = Breadth("bin", bins)
        edges, fine = (torch.linspace(0, 1, bins + 1, dtype=dtype, device="cpu") for dtype in EDGE_DTYPES)
        self.constants = {"unit": 1, "edges": edges, "fine_edges": fine}
        slots = {
            "seen": Slot((bins + 2,)),
            "right": Slot((bins + 2,)),
            "confidence": Slot((bins + 2,), torch.float64),
            "strange": Slot(),
        }
        super().__init__((problem, bins), slots, checked)

    def count(self, batch: Batch) -> None:
        if self.checked:
            self.problem.check_floats(batch)
        scores = batch.derive(problem_scores, self.problem)
        if self.problem.task == "binary":
            marks = batch.derive(problem_marks, self.problem)[:, 0]
            confidence, right, dropped = scores[:, 0], marks.clamp(min=0), marks < 0
            invalid = marks == -2
        else:
            target = batch.derive(labels.target_classes).flatten()
            best = scores.max(dim=1)
            confidence, right = best.values.float(), (best.indices == target).to(torch.int64)
            invalid = (target < 0) | (target >= self.problem.classes)
            ignored = self.problem.ignore_index
            if ignored is not None:
                invalid = invalid & (target != ignored)
            dropped = invalid if ignored is None else invalid | (target == ignored)
        self.state["strange"].add_(invalid.sum())
        edges = self.fine_edges if confidence.dtype == torch.float64 else self.edges
        bins = torch.bucketize(confidence.contiguous(), edges, right=True).sub_(1)
        bins = bins.masked_fill_(dropped, len(edges)).clamp_(min=0)
        self.state["seen"].scatter_add_(0, bins, self.unit.expand_as(bins))
        self.state["right"].scatter_add_(0, bins, right)
        summed = self.state["confidence"]
        summed.index_add_(0, bins, confidence.to(summed.dtype))


class CalibrationMetric(PredictionMetric, abstract=True):
    """The distance between confidence and accuracy, over bins of confidence.

    Args:
        n_bins: the number of bins, all of equal width.
        norm: ``"l1"`` for the mean distance, ``"l2"`` for the root of the mean square, ``"max"`` for the
            largest.
    """

    needs_scores = True
    more_arguments = ("logits",)
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    higher_is_better = False
    norm = "l1"
    confidences: ConfidenceBins

    def value(self) -> Tensor:
        state = self.confidences.state
        counts = state["seen"][:-1].to(state["confidence"].dtype)
        distance = (state["right"][:-1] / counts - state["confidence"][:-1] / counts).nan_to_num().abs()
        share = counts / counts.sum()
        if self.norm == "max":
            return distance.max().to(self.dtype)
        if self.norm == "l2":
            mean_square = (distance**2 * share).sum()
            return torch.where(mean_square > 0, mean_square, 0.0).sqrt().to(self.dtype)
        return (distance * share).sum().to(self.dtype)

    def _set_up_bins(
        self,
        classes: int,
        n_bins: int,
        norm: str,
        ignore_index: int | None,
        validate_args: bool,
        options: dict[str, Any],
    ) -> None:
        """Check and set the options, and set up the bins."""
        logits = options.pop("logits", None)
        self._set_up(ignore_index, validate_args, options, classes)
        if validate_args:
            checks.check_integer_above("n_bins", n_bins, 0)
            checks.check_one_of("norm", norm, ("l1", "l2", "max"), stop=".")
            if self.task == "multiclass":
                checks.check_integer_above("num_classes", classes, 1)
        self.n_bins = n_bins
        self.norm = norm
        problem = Problem(self.task, classes, ignore_index, "sigmoid", logits)
        self.use("confidences", ConfidenceBins(problem, n_bins, validate_args))


class BinaryCalibrationError(CalibrationMetric):
    """The distance between the predicted probability of a positive and how often it is one."""

    def __init__(
        self,
        n_bins: int = 15,
        norm: str = "l1",
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._set_up_bins(1, n_bins, norm, ignore_index, validate_args, kwargs)


class MulticlassCalibrationError(CalibrationMetric):
    """The distance between the confidence in the predicted class and how often it is correct."""

    task = "multiclass"

    def __init__(
        self,
        num_classes: int,
        n_bins: int = 15,
        norm: str = "l1",
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._set_up_bins(num_classes, n_bins, norm, ignore_index, validate_args, kwargs)


class CalibrationError(Task):
    """The calibration error of a task, binary or multiclass."""
