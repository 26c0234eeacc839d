"""Which bytes of its storage a tensor is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

_MOST = 1 << 26
"""Bytes up to which interleaved tensors are compared exactly; larger ones are taken to be apart."""


class Strided(NamedTuple):
    """Where the elements of a tensor with gaps lie, in bytes."""

    begin: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item: int


class Range(NamedTuple):
    """Bytes from `begin` to `end`, or some of them."""

    begin: int
    end: int
    gaps: Strided | None = None

    def meets(self, other: Range) -> int:
        """How many bytes both have, at most; 0 where they have none in common."""
        begin, end = max(self.begin, other.begin), min(self.end, other.end)
        if begin >= end:
            return 0
        if self.gaps is None and other.gaps is None:
            return end - begin
        if self.gaps == other.gaps:
            return end - begin
        low, high = min(self.begin, other.begin), max(self.end, other.end)
        if high - low > _MOST:
            return 0
        return int(np.count_nonzero(_mask(self, low, high) & _mask(other, low, high)))

    def covers(self, other: Range) -> bool:
        """Whether all of `other` is certainly in it."""
        return self == other or (self.gaps is None and self.begin <= other.begin and other.end <= self.end)


def of(tensor: torch.Tensor) -> Range:
    """The bytes that a strided tensor takes of its storage."""
    item: int = tensor.itemsize
    begin = int(tensor.storage_offset()) * item
    if tensor.is_contiguous():
        return Range(begin, begin + int(tensor.numel()) * item)
    shape, strides = tuple(map(int, tensor.shape)), tuple(int(one) * item for one in tensor.stride())
    if not tensor.numel():
        return Range(begin, begin)
    end = begin + item + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    dense = end - begin == tensor.numel() * item  # another order of dimensions
    return Range(begin, end, None if dense else Strided(begin, shape, strides, item))


def _mask(of: Range, low: int, high: int) -> np.ndarray:
    found = np.zeros(high - low, dtype=bool)
    if of.gaps is None:
        found[of.begin - low : of.end - low] = True
        return found
    begin, shape, strides, item = of.gaps
    view = np.lib.stride_tricks.as_strided(
        found[begin - low :], (*shape, item), (*strides, 1), writeable=True
    )
    view[...] = True
    return found
