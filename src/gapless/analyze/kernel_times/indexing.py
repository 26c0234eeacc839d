"""The memory traffic of indexing with tensors: indices, elements, and a sort of the indices of gradients.

In ATen (``TensorAdvancedIndexing.cpp``, ``Indexing.cu``) two passes turn a mask into indices of 8 bytes for
each dimension of each selected element. The indices of a gradient are combined into one number each,
dimension by dimension, and sorted by radix; values are added in that order.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from gapless.model.programme import Entry, Shape

_INDEX_BYTES = 8
"""Bytes of an index in one dimension."""
_LINEARIZE_BYTES = 56
"""Bytes moved per element and dimension to combine indices: remainder, stride and sum are read and written.
"""
_SORT_BITS, _SORT_BYTES = 8, 32
"""Bits that a pass of the radix sort handles, and bytes that it moves per index and its original position."""


class IndexingWork(NamedTuple):
    """The fields of `DeviceWork` that indexing determines."""

    bytes_moved: float
    lookups: float
    kernels: int


def indexing_work(entry: Entry, stem: str, size: int) -> IndexingWork | None:
    """Return the work of ``index`` or ``index_put``; None if the shapes of `entry` do not determine it.

    `size` is the bytes of an element.
    """
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
        picked = math.prod(values)  # indices of other dimensions than the first, which are not recorded
    moved = dimensions * _INDEX_BYTES * count + 2.0 * picked * size
    kernels = 1
    if mask:
        moved += 2.0 * math.prod(places[0]) + dimensions * _INDEX_BYTES * count
        kernels += 3
    if puts and entry.backward:
        passes = -(-max(math.prod(source[:dimensions]) - 1, 1).bit_length() // _SORT_BITS)
        moved += (
            count * (dimensions * _LINEARIZE_BYTES + passes * _SORT_BYTES + 2.0 * _INDEX_BYTES)
            + picked * size
        )
        kernels += 4 * dimensions + passes + 1
    return IndexingWork(moved, float(picked), kernels)


def _is_mask(source: Shape, places: tuple[Shape, ...], values: Shape) -> bool:
    """Whether a single mask over the first dimensions selects the elements, by the values' dimensions."""
    if len(places) != 1 or not places[0] or places[0] != source[: len(places[0])]:
        return False
    if len(places[0]) == 1:
        return bool(values) and values[0] != places[0][0]
    return not values or len(values) == 1 + len(source) - len(places[0])


def _count(places: tuple[Shape, ...], values: Shape, mask: bool) -> int:
    """Return the number of indexed places; half of a mask whose selection is unknown."""
    if not mask:
        return max(map(math.prod, places))
    return values[0] if values else math.prod(places[0]) // 2
