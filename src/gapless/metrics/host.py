"""Faster loops over CPU memory: NumPy vectorizes some that torch does not, with the same results.

On an accelerator, in compiled functions and for tensor subclasses torch's own operators run instead.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gapless.metrics.batch import CPU

HALF_DTYPES = (torch.float16, torch.bfloat16)
"""Dtypes that NumPy cannot search: they are converted to float32 first."""


def is_readable_on_host(value: Tensor) -> bool:
    """Whether `value` is in CPU memory that NumPy may read now."""
    return type(value) is Tensor and value.device == CPU and not torch.compiler.is_compiling()


def argmax(scores: Tensor, dim: int) -> Tensor:
    """Return ``scores.argmax(dim)``: the first of the largest, where NaN is larger than all else.

    Along contiguous memory torch compares one value at a time, NumPy as many as fit into a register.
    """
    if scores.stride(dim) != 1 or not scores.is_floating_point() or not is_readable_on_host(scores):
        return scores.argmax(dim)
    if not scores.numel():  # torch raises if that is an error
        return scores.argmax(dim)
    values = scores.detach() if scores.requires_grad else scores
    values = values.float() if values.dtype in HALF_DTYPES else values
    return torch.from_numpy(np.asarray(values.numpy().argmax(dim)))


class ClassTable:
    """A table ``(3, classes + 3)`` of int64 on the CPU, with NumPy views of its parts."""

    def __init__(self, table: Tensor, classes: int) -> None:
        array = table.numpy()
        self.table = table
        self.classes = classes
        self.actual, self.predicted, self.hit = array[:, 1 : classes + 1]
        self._edges = array[:2, :: classes + 1]

    def add(self, target: Tensor, predicted: Tensor, ignore_index: int | None, largest: bool) -> bool:
        """Count labels (int64, same shape) if all that count are valid classes.

        `largest` says that predictions are positions of largest scores, hence valid. Returns False, and
        counts nothing, if a label is not a class.
        """
        actual, guessed = target.numpy().ravel(), predicted.numpy().ravel()
        if ignore_index is not None:
            kept = actual != ignore_index
            if not kept.all():
                actual, guessed = actual[kept], guessed[kept]
        if not (self._are_classes(actual) and (largest or self._are_classes(guessed))):
            return False
        classes = self.classes
        if 16 * classes**2 <= actual.size:  # The table of pairs is small beside the batch: one pass.
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
        """Return how many labels were not classes."""
        return int(self._edges.sum())

    def _are_classes(self, labels: np.ndarray) -> bool:
        # As unsigned integers, negative labels are larger than all classes.
        return not labels.size or bool(labels.view(np.uint64).max() < self.classes)
