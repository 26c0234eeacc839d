"""Which bytes of its storage a tensor is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

_MOST = 1 << 26
"""Bytes up to which interleaved tensors are compared exactly; larger ones are taken to be apart."""

_MOST_TOGETHER = 1 << 22


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


def covered(ranges: Iterable[Range], size: int) -> int:
    """How many of the first `size` bytes they take together; all of them, where those are many.

    >>> covered([Range(0, 4), Range(2, 16, Strided(2, (2, 1), (8, 4), 4))], 16)
    10
    """
    if size > _MOST_TOGETHER:
        return size
    found = np.zeros(size, dtype=bool)
    for one in ranges:
        found |= _mask(one, 0, size)
    return int(np.count_nonzero(found))


def of(tensor: torch.Tensor) -> Range:
    """The bytes that a strided tensor takes of its storage."""
    return at(tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.itemsize)


def at(offset: Any, shape: Sequence[Any], strides: Sequence[Any], item: int) -> Range:
    """The bytes that a tensor of `shape` takes; `offset` and `strides` are in elements of `item` bytes."""
    begin, number, span = int(offset) * item, 1, 1
    for size, stride in zip(shape, strides, strict=True):
        number *= int(size)
        span += (int(size) - 1) * int(stride)
    if not number:
        return Range(begin, begin)
    end = begin + span * item
    if number == span:  # contiguous, or in another order of dimensions
        return Range(begin, end)
    return Range(
        begin, end, Strided(begin, tuple(map(int, shape)), tuple(int(one) * item for one in strides), item)
    )


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
