"""How far confidence is from being right."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.classification import labels
from gapless.metrics.classification.scores import Problem, problem_marks, problem_scores
from gapless.metrics.metric import Metric
from gapless.metrics.statistic import Slot, Statistic
from gapless.metrics.tasks import Task


class Confidences(Statistic):
    """Per bin of confidence: how many predictions, their summed confidence, and how many were right."""

    one: Tensor
    edges: Tensor

    def __init__(self, problem: Problem, bins: int, checked: bool) -> None:
        self.problem = problem
        self.constants = {"one": 1, "edges": torch.linspace(0, 1, bins + 1, device="cpu")}
        slots = {
            "seen": Slot((bins + 2,)),
            "right": Slot((bins + 2,)),
            "confidence": Slot((bins + 2,), torch.float64),
            "strange": Slot(),
        }
        super().__init__((problem, bins), slots, checked)

    def count(self, batch: Batch) -> None:
        if self.checked:
            self._check(batch)
        scores = batch.derive(problem_scores, self.problem)
        if self.problem.task == "binary":
            marks = batch.derive(problem_marks, self.problem)[:, 0]
            confidence, right, dropped = scores[:, 0], marks.clamp(min=0), marks < 0
            strange = marks == -2
        else:
            target = batch.derive(labels.target_classes).flatten()
            best = scores.max(dim=1)
            confidence, right = best.values.float(), (best.indices == target).to(torch.int64)
            strange = (target < 0) | (target >= self.problem.classes)
            ignored = self.problem.ignore_index
            if ignored is not None:
                strange = strange & (target != ignored)
            dropped = strange if ignored is None else strange | (target == ignored)
        self.state["strange"].add_(strange.sum())
        edges = self.edges if self.edges.dtype == confidence.dtype else self.edges.to(confidence.dtype)
        at = torch.bucketize(confidence.contiguous(), edges, right=True).sub_(1)
        at = at.masked_fill_(dropped, len(edges)).clamp_(min=0)
        self.state["seen"].scatter_add_(0, at, self.one.expand_as(at))
        self.state["right"].scatter_add_(0, at, right)
        summed = self.state["confidence"]
        summed.index_add_(0, at, confidence.to(summed.dtype))

    def faults(self) -> Tensor:
        return self.state["strange"]

    def complaint(self, count: int) -> str:
        return self.problem.complaint(count)

    def _check(self, batch: Batch) -> None:
        if self.problem.task == "binary":
            labels.same_shape(batch)
        else:
            labels.check_multiclass(batch, self.problem.classes, False)
        preds = batch.args[0]
        if not preds.is_floating_point():
            raise ValueError(
                "Expected argument `preds` to be floating tensor with probabilities/logits"
                f" but got tensor with dtype {preds.dtype}"
            )


class Calibration(Metric):
    """The distance between confidence and the share that is right, over bins of confidence.

    Args:
        n_bins: how many bins of equal width.
        norm: ``"l1"`` for the mean distance, ``"l2"`` for the root of the mean square, ``"max"`` for the
            largest.
        ignore_index: a target that does not count.
        validate_args: whether arguments, shapes and values are checked; values are counted on the device.
        logits: whether predictions are logits; None takes a batch with a value outside [0, 1] for logits.
    """

    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    is_differentiable = False
    higher_is_better = False
    norm = "l1"
    confidences: Confidences

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch of scores and targets."""
        self.observe(preds, target)

    def value(self) -> Tensor:
        state = self.confidences.state
        seen = state["seen"][:-1].to(state["confidence"].dtype)
        distance = (state["right"][:-1] / seen - state["confidence"][:-1] / seen).nan_to_num().abs()
        share = seen / seen.sum()
        if self.norm == "max":
            return distance.max().float()
        if self.norm == "l2":
            spread = (distance**2 * share).sum()
            return torch.where(spread > 0, spread, 0.0).sqrt().float()
        return (distance * share).sum().float()

    def _begin(
        self,
        task: str,
        classes: int,
        n_bins: int,
        norm: str,
        ignore_index: int | None,
        options: dict[str, Any],
    ) -> None:
        logits, validate_args = options.pop("logits", None), options.pop("validate_args")
        Metric.__init__(self, **options)
        if validate_args:
            checks.integer_above("n_bins", n_bins, 0)
            checks.one_of("norm", norm, ("l1", "l2", "max"), stop=".")
            checks.optional_integer("ignore_index", ignore_index)
            if task == "multiclass":
                checks.integer_above("num_classes", classes, 1)
        self.n_bins = n_bins
        self.norm = norm
        self.ignore_index = ignore_index
        self.validate_args = validate_args
        problem = Problem(task, classes, ignore_index, "sigmoid", logits)
        self.use("confidences", Confidences(problem, n_bins, validate_args))


class BinaryCalibrationError(Calibration):
    __doc__ = Calibration.__doc__

    def __init__(
        self,
        n_bins: int = 15,
        norm: str = "l1",
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._begin("binary", 1, n_bins, norm, ignore_index, {**kwargs, "validate_args": validate_args})


class MulticlassCalibrationError(Calibration):
    __doc__ = Calibration.__doc__

    plot_legend_name = "Class"

    def __init__(
        self,
        num_classes: int,
        n_bins: int = 15,
        norm: str = "l1",
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        options = {**kwargs, "validate_args": validate_args}
        self._begin("multiclass", num_classes, n_bins, norm, ignore_index, options)
        self.num_classes = num_classes


class CalibrationError(Task):
    """The calibration error of a task, binary or multiclass."""

    forms: ClassVar = {"binary": BinaryCalibrationError, "multiclass": MulticlassCalibrationError}
    arguments: ClassVar = {
        "n_bins": 15,
        "norm": "l1",
        "num_classes": None,
        "ignore_index": None,
        "validate_args": True,
    }
