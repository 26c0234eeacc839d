"""How often each class was taken for each other one, and the metrics that need to know it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gapless.metrics import checks, fusing
from gapless.metrics.batch import Batch
from gapless.metrics.classification import labels, words
from gapless.metrics.classification.counts import BinaryCounts, Classes, Sides, count_fused
from gapless.metrics.classification.predictions import PredictionMetric
from gapless.metrics.divide import divide
from gapless.metrics.host import within_reach
from gapless.metrics.statistic import Slot

NORMALIZATIONS = ("true", "pred", "all", "none", None)


class ConfusionCounts(words.Labelled):
    """A table of targets by predictions, with a place behind it for what is no class, and one for what is
    ignored.
    """

    one: Tensor
    nowhere: Tensor
    twins = True

    def __init__(self, classes: int, ignore_index: int | None, checked: bool) -> None:
        self.classes = classes
        self.ignore_index = ignore_index
        self.subject = Classes(classes, 1, ignore_index, "pair")
        self.constants = {"one": 1, "nowhere": classes * classes}
        super().__init__((classes, ignore_index), {"table": Slot((classes * classes + 2,))}, checked)

    def count(self, batch: Batch) -> None:
        if self.checked:
            batch.derive(labels.check_multiclass, self.classes, False)
        if fusing.on(self.device) and count_fused(self, batch, self.classes, self.ignore_index, pairs=True):
            return
        target, predicted = batch.derive(labels.target_classes), batch.derive(labels.top_class)
        at = target * self.classes + predicted
        strange = (target < 0) | (target >= self.classes)
        if not batch.args[0].is_floating_point():
            strange = strange | (predicted < 0) | (predicted >= self.classes)
        at = torch.where(strange, self.nowhere, at)
        if self.ignore_index is not None:
            at = at.masked_fill_(target == self.ignore_index, self.classes * self.classes + 1)
        at = at.flatten()
        self.state["table"].scatter_add_(0, at, self.one.expand_as(at))

    def faults(self) -> Tensor:
        return self.state["table"][-2]

    def size_of(self, slot: str, shape: Sequence[int]) -> str:
        return f"{math.isqrt(shape[0] - 2)} classes" if slot == "table" and len(shape) == 1 else ""

    def matrix(self) -> Tensor:
        """``[C, C]``, targets by predictions."""
        return self.state["table"][:-2].view(self.classes, self.classes).clone()


class Confusion(PredictionMetric, abstract=True):
    """A metric of the confusion matrix of a task."""

    beyond = "logits"
    confused: Any

    def value(self) -> Tensor:
        return self.score(self.matrix())

    def score(self, matrix: Tensor) -> Tensor:
        """The metric's value from the confusion matrix, or matrices."""
        raise NotImplementedError

    def matrix(self) -> Tensor:
        """``[2, 2]``, ``[C, C]`` or ``[L, 2, 2]`` of int64: targets by predictions."""
        if self.task == "multiclass":
            matrix: Tensor = self.confused.matrix()
            return matrix
        tp, fp, tn, fn = self.confused.counts()
        return torch.stack((torch.stack((tn, fp), -1), torch.stack((fn, tp), -1)), -2)

    def _count_sides(self, threshold: float, labels: int | None, logits: bool | None) -> None:
        """Count what lies on either side of `threshold`, of `labels` labels; of one if None."""
        self.threshold = threshold
        sides = Sides(threshold, self.ignore_index, logits)
        self.use("confused", BinaryCounts(sides, labels, self.validate_args))


class BinaryConfusion(Confusion, abstract=True):
    """The binary form."""

    def __init__(
        self,
        threshold: float = 0.5,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        logits = kwargs.pop("logits", None)
        self._begin(ignore_index, validate_args, kwargs)
        if validate_args:
            checks.unit_float("threshold", threshold)
        self._count_sides(threshold, None, logits)


class MulticlassConfusion(Confusion, abstract=True):
    """The multiclass form."""

    task = "multiclass"
    beyond = ""

    def __init__(
        self, num_classes: int, ignore_index: int | None = None, validate_args: bool = True, **kwargs: Any
    ) -> None:
        self._begin(ignore_index, validate_args, kwargs, num_classes)
        if validate_args:
            checks.integer_above("num_classes", num_classes, 1)
        self.use("confused", ConfusionCounts(num_classes, ignore_index, validate_args))


class MultilabelConfusion(Confusion, abstract=True):
    """The multilabel form."""

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
        self._begin(ignore_index, validate_args, kwargs, num_labels)
        if validate_args:
            checks.integer_above("num_labels", num_labels, 1)
            checks.unit_float("threshold", threshold, range_told=False)
        self._count_sides(threshold, num_labels, logits)


def normalized(matrix: Tensor, normalize: str | None) -> Tensor:
    """The confusion matrix in shares of targets, of predictions or of all; 0 where there are none."""
    if normalize is None or normalize == "none":
        return matrix
    dims: Any = {"true": -1, "pred": -2, "all": (-2, -1)}[normalize]
    whole = matrix.sum(dims, keepdim=True)
    if within_reach(whole):  # Elsewhere the host would wait to learn it.
        lost = int((whole == 0).expand_as(matrix).sum())
        if lost:
            checks.warn(f"{lost} NaN values found in confusion matrix have been replaced with zeros.")
    return divide(matrix, whole)
