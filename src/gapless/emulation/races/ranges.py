"""The bytes of its storage that a tensor covers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

_MAX_EXACT_BYTES = 1 << 26
"""Bytes up to which interleaved tensors are compared exactly; larger ones count as disjoint (memory)."""

_MAX_UNION_BYTES = 1 << 22
"""Bytes up to which coverage is counted exactly: the count takes a byte of memory for each."""


class Strided(NamedTuple):
    """The elements of a tensor with gaps: begin, strides and item size in bytes."""

    begin: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item: int


class ByteRange(NamedTuple):
    """Bytes from `begin` to `end`, or those of them that `gaps` describes."""

    begin: int
    end: int
    gaps: Strided | None = None

    def meets(self, other: ByteRange) -> int:
        """Return an upper bound of the bytes in common; 0 if there are none."""
        begin, end = max(self.begin, other.begin), min(self.end, other.end)
        if begin >= end:
            return 0
        if self.gaps is None and other.gaps is None:
            return end - begin
        if self.gaps == other.gaps:
            return end - begin
        low, high = min(self.begin, other.begin), max(self.end, other.end)
        if high - low > _MAX_EXACT_BYTES:
            return 0
        return int(np.count_nonzero(_mask(self, low, high) & _mask(other, low, high)))

    def covers(self, other: ByteRange) -> bool:
        """Whether this range certainly contains all of `other`."""
        return self == other or (self.gaps is None and self.begin <= other.begin and other.end <= self.end)


def count_covered(ranges: Iterable[ByteRange], size: int) -> int:
    """Return how many of the first `size` bytes `ranges` cover together; `size` itself if it is large.

    >>> count_covered([ByteRange(0, 4), ByteRange(2, 16, Strided(2, (2, 1), (8, 4), 4))], 16)
    10
    """
    if size > _MAX_UNION_BYTES:
        return size
    mask = np.zeros(size, dtype=bool)
    for part in ranges:
        mask |= _mask(part, 0, size)
    return int(np.count_nonzero(mask))


def of(tensor: torch.Tensor) -> ByteRange:
    """Return the bytes of its storage that a strided tensor covers."""
    return at(tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.itemsize)


def at(offset: Any, shape: Sequence[Any], strides: Sequence[Any], item: int) -> ByteRange:
    """Return the bytes of a tensor of `shape`; `offset` and `strides` are in elements of `item` bytes."""
    begin, number, span = int(offset) * item, 1, 1
    for size, stride in zip(shape, strides, strict=True):
        number *= int(size)
        span += (int(size) - 1) * int(stride)
    if not number:
        return ByteRange(begin, begin)
    end = begin + span * item
    if number == span:  # contiguous, or in another order of dimensions
        return ByteRange(begin, end)
    return ByteRange(
        begin,
        end,
        Strided(begin, tuple(map(int, shape)), tuple(int(stride) * item for stride in strides), item),
    )


def _mask(of: ByteRange, low: int, high: int) -> np.ndarray:
    mask = np.zeros(high - low, dtype=bool)
    if of.gaps is None:
        mask[of.begin - low : of.end - low] = True
        return mask
    begin, shape, strides, item = of.gaps
    view = np.lib.stride_tricks.as_strided(mask[begin - low :], (*shape, item), (*strides, 1), writeable=True)
    view[...] = True
    return mask
