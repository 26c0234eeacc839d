"""Confusion matrices, and the base classes of metrics computed from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from gapless.metrics import checks, fusing
from gapless.metrics.batch import Batch
from gapless.metrics.classification import label_messages, labels
from gapless.metrics.classification.counts import BinaryCounts, ClassLayout, ThresholdLayout, count_fused
from gapless.metrics.classification.predictions import PredictionMetric
from gapless.metrics.divide import divide
from gapless.metrics.host import is_readable_on_host
from gapless.metrics.statistic import Slot

NORMALIZATIONS = ("true", "pred", "all", "none", None)
"""Accepted values of `normalize`."""


class ConfusionCounts(label_messages.LabelStatistic):
    """A flat table of targets by predictions, then a cell for invalid labels and one for ignored ones."""

    unit: Tensor
    invalid_cell: Tensor
    twins = True

    def __init__(self, classes: int, ignore_index: int | None, checked: bool) -> None:
        self.classes = classes
        self.ignore_index = ignore_index
        self.label_rules = ClassLayout(classes, 1, ignore_index, "pair")
        self.constants = {"unit": 1, "invalid_cell": classes * classes}
        super().__init__((classes, ignore_index), {"table": Slot((classes * classes + 2,))}, checked)

    def count(self, batch: Batch) -> None:
        if self.checked:
            batch.derive(labels.check_multiclass, self.classes, False)
        if fusing.uses_kernels(self.device) and count_fused(
            self, batch, self.classes, self.ignore_index, pairs=True
        ):
            return
        target, predicted = batch.derive(labels.target_classes), batch.derive(labels.top_class)
        cells = target * self.classes + predicted
        invalid = (target < 0) | (target >= self.classes)
        if not batch.args[0].is_floating_point():
            invalid = invalid | (predicted < 0) | (predicted >= self.classes)
        cells = torch.where(invalid, self.invalid_cell, cells)
        if self.ignore_index is not None:
            cells = cells.masked_fill_(target == self.ignore_index, self.classes * self.classes + 1)
        cells = cells.flatten()
        self.state["table"].scatter_add_(0, cells, self.unit.expand_as(cells))

    def faults(self) -> Tensor:
        return self.state["table"][-2]

    def size_of(self, slot: str, shape: Sequence[int], own: Sequence[int]) -> str:
        return f"{math.isqrt(max(shape[0] - 2, 0))} classes" if len(shape) == 1 else ""

    def matrix(self) -> Tensor:
        """Return the confusion matrix ``[C, C]``, targets by predictions."""
        return self.state["table"][:-2].view(self.classes, self.classes).clone()


class Confusion(PredictionMetric, abstract=True):
    """A metric computed from the confusion matrix of a task."""

    more_arguments: ClassVar[tuple[str, ...]] = ("logits",)
    confused: Any

    def update(self, preds: Tensor, target: Tensor) -> None:
        self.observe(preds, target)

    def value(self) -> Tensor:
        return self.score(self.matrix())

    def score(self, matrix: Tensor) -> Tensor:
        """Return the metric's value from the confusion matrix, or the matrices of all labels."""
        raise NotImplementedError

    def matrix(self) -> Tensor:
        """Return the int64 matrix of targets by predictions: ``[2, 2]``, ``[C, C]`` or ``[L, 2, 2]``."""
        if self.task == "multiclass":
            matrix: Tensor = self.confused.matrix()
            return matrix
        tp, fp, tn, fn = self.confused.counts()
        return torch.stack((torch.stack((tn, fp), -1), torch.stack((fn, tp), -1)), -2)

    def _use_threshold_counts(self, threshold: float, labels: int | None, logits: bool | None) -> None:
        """Count the outcomes at `threshold`, for each of `labels` labels (None for a single one)."""
        self.threshold = threshold
        layout = ThresholdLayout(threshold, self.ignore_index, logits)
        self.use("confused", BinaryCounts(layout, labels, self.validate_args))


class BinaryConfusion(Confusion, abstract=True):
    """The binary form of a confusion metric."""

    def __init__(
        self,
        threshold: float = 0.5,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        logits = kwargs.pop("logits", None)
        self._set_up(ignore_index, validate_args, kwargs)
        if validate_args:
            checks.check_unit_float("threshold", threshold)
        self._use_threshold_counts(threshold, None, logits)


class MulticlassConfusion(Confusion, abstract=True):
    """The multiclass form of a confusion metric."""

    task = "multiclass"
    more_arguments = ()

    def __init__(
        self, num_classes: int, ignore_index: int | None = None, validate_args: bool = True, **kwargs: Any
    ) -> None:
        self._set_up(ignore_index, validate_args, kwargs, num_classes)
        if validate_args:
            checks.check_integer_above("num_classes", num_classes, 1)
        self.use("confused", ConfusionCounts(num_classes, ignore_index, validate_args))


class MultilabelConfusion(Confusion, abstract=True):
    """The multilabel form of a confusion metric."""

    task = "multilabel"

    def __init__(
        self,
        num_labels: int,
        threshold: float = 0.5,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        logits = kwargs.pop("logits", None)
        self._set_up(ignore_index, validate_args, kwargs, num_labels)
        if validate_args:
            checks.check_integer_above("num_labels", num_labels, 1)
            checks.check_unit_float("threshold", threshold, show_range=False)
        self._use_threshold_counts(threshold, num_labels, logits)


def normalize_matrix(matrix: Tensor, normalize: str | None) -> Tensor:
    """Divide the confusion matrix by its row sums, column sums or total; 0 where the divisor is 0."""
    if normalize is None or normalize == "none":
        return matrix
    dims: Any = {"true": -1, "pred": -2, "all": (-2, -1)}[normalize]
    totals = matrix.sum(dims, keepdim=True)
    if is_readable_on_host(totals):  # On a device the host would wait for the number.
        undefined = int((totals == 0).expand_as(matrix).sum())
        if undefined:
            checks.warn(f"{undefined} NaN values found in confusion matrix have been replaced with zeros.")
    return divide(matrix, totals)
