"""What indexing with tensors moves: places, elements and, where values are added up, a sort of the places.

As ATen goes about it (``TensorAdvancedIndexing.cpp``, ``Indexing.cu``): a mask becomes places by two passes
over it, 8 bytes for each dimension of each element that it lets through; a gradient's places are made one
number each, dimension by dimension, sorted by radix, and their values added in that order.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from gapless.model.programme import Entry, Shape

_PLACE = 8
"""Bytes of a place in one dimension."""
_LINEAR = 56
"""Bytes for each place and dimension: the remainder, its stride, and the sum are read and written."""
_DIGIT, _PAIR = 8, 32
"""Bits that a pass of the sort looks at, and what it reads and writes of a place and where it came from."""


class Indexed(NamedTuple):
    """Bytes that are moved, elements that are picked one by one, and kernels."""

    moved: float
    picked: float
    kernels: int


def indexed(entry: Entry, stem: str, size: int) -> Indexed | None:
    """What ``index`` and ``index_put`` of `entry`, whose elements have `size` bytes, move; None where its
    shapes do not tell."""
    puts = stem != "index"
    if len(entry.inputs) < 2 + puts or not entry.outputs:
        return None
    source = entry.inputs[0]
    places = entry.inputs[1:-1] if puts else entry.inputs[1:]
    values = entry.inputs[-1] if puts else entry.outputs[0]
    mask = _is_mask(source, places, values)
    dimensions = len(places[0]) if mask else len(places)
    count = _count(places, values, mask)
    picked = count * math.prod(source[dimensions:])
    if not puts or (picked != math.prod(values) and picked > math.prod(source)):
        picked = math.prod(values)  # places of other dimensions than the first, which shapes do not tell
    moved = dimensions * _PLACE * count + 2.0 * picked * size
    kernels = 1
    if mask:
        moved += 2.0 * math.prod(places[0]) + dimensions * _PLACE * count
        kernels += 3
    if puts and entry.backward:
        passes = -(-max(math.prod(source[:dimensions]) - 1, 1).bit_length() // _DIGIT)
        moved += count * (dimensions * _LINEAR + passes * _PAIR + 2.0 * _PLACE) + picked * size
        kernels += 4 * dimensions + passes + 1
    return Indexed(moved, float(picked), kernels)


def _is_mask(source: Shape, places: tuple[Shape, ...], values: Shape) -> bool:
    """Whether a single mask over the first dimensions selects the elements, by the values' dimensions."""
    if len(places) != 1 or not places[0] or places[0] != source[: len(places[0])]:
        return False
    if len(places[0]) == 1:
        return bool(values) and values[0] != places[0][0]
    return not values or len(values) == 1 + len(source) - len(places[0])


def _count(places: tuple[Shape, ...], values: Shape, mask: bool) -> int:
    """Return the number of places; for a mask with unknown selection, half of it."""
    if not mask:
        return max(map(math.prod, places))
    return values[0] if values else math.prod(places[0]) // 2
