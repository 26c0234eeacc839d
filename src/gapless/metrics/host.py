"""Loops over memory of the CPU that NumPy vectorizes and torch does not; results are the same.

On an accelerator, in compiled functions and for tensor subclasses torch's own operators run instead.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gapless.metrics.batch import CPU

HALVES = (torch.float16, torch.bfloat16)


def within_reach(value: Tensor) -> bool:
    """Whether `value` is memory of the CPU that NumPy may look at now."""
    return type(value) is Tensor and value.device == CPU and not torch.compiler.is_compiling()


def argmax(scores: Tensor, dim: int) -> Tensor:
    """``scores.argmax(dim)``: the first of the largest, where NaN is larger than all else.

    Along contiguous memory torch compares one value after the other, NumPy as many as a register holds.
    """
    if scores.stride(dim) != 1 or not scores.is_floating_point() or not within_reach(scores):
        return scores.argmax(dim)
    if not scores.numel():  # Of which torch says what is wrong, if anything is.
        return scores.argmax(dim)
    values = scores.detach() if scores.requires_grad else scores
    values = values.float() if values.dtype in HALVES else values
    return torch.from_numpy(np.asarray(values.numpy().argmax(dim)))


class ClassTable:
    """A table ``(3, classes + 3)`` of int64 on the CPU, and NumPy's views of what in it is looked at."""

    def __init__(self, table: Tensor, classes: int) -> None:
        array = table.numpy()
        self.table = table
        self.classes = classes
        self.actual, self.predicted, self.hit = array[:, 1 : classes + 1]
        self._edges = array[:2, :: classes + 1]

    def add(self, target: Tensor, predicted: Tensor, ignore_index: int | None, largest: bool) -> bool:
        """Count labels, int64 of the same shape, where all that count are classes.

        `largest` says that the predicted are positions of largest scores, which are classes. Returns False,
        and counts nothing, where a label is none.
        """
        actual, guessed = target.numpy().ravel(), predicted.numpy().ravel()
        if ignore_index is not None:
            kept = actual != ignore_index
            if not kept.all():
                actual, guessed = actual[kept], guessed[kept]
        if not (self._are_classes(actual) and (largest or self._are_classes(guessed))):
            return False
        classes = self.classes
        if 16 * classes**2 <= actual.size:  # One pass over a batch beside which a table of pairs is small.
            places = actual * classes
            places += guessed
            pairs = np.bincount(places, minlength=classes**2).reshape(classes, classes)
            self.actual += pairs.sum(1)
            self.predicted += pairs.sum(0)
            self.hit += pairs.diagonal()
        else:
            self.actual += np.bincount(actual, minlength=classes)
            self.predicted += np.bincount(guessed, minlength=classes)
            self.hit += np.bincount(actual[actual == guessed], minlength=classes)
        return True

    def strange(self) -> int:
        """How many labels were no class."""
        return int(self._edges.sum())

    def _are_classes(self, labels: np.ndarray) -> bool:
        # As unsigned integers, negative ones are the largest.
        return not labels.size or bool(labels.view(np.uint64).max() < self.classes)
