"""Sizes of the caching allocator, and how it rounds requests.

Source: c10/core/AllocatorConfig.h and c10/cuda/CUDACachingAllocator.cpp of torch 2.13.
"""

from __future__ import annotations

MIB = 1 << 20
"""Bytes per MiB."""
MIN_BLOCK = 512
"""The size of every block is a multiple of this."""
SMALL = MIB
"""The largest request served from the small pool."""
SMALL_SEGMENT = 2 * MIB
MIN_LARGE = 10 * MIB
"""Requests from this size on get a segment of their own."""
LARGE_SEGMENT = 20 * MIB
"""Segment for requests between `SMALL` and `MIN_LARGE`, unless ``large_segment_size_mb`` changes it."""
ROUND_LARGE = 2 * MIB
INTERVALS = 16
"""Powers of two from 1 MiB to 64 GiB; ``roundup_power2_divisions`` has a number for each."""


def round_size(size: int, divisions: tuple[int, ...] = ()) -> int:
    """Return the size of the block for a request of `size` bytes.

    `divisions` (16 numbers, or none) are the steps between a power of two and the next; 0 and 1 mean plain
    multiples of 512.
    """
    if size < MIN_BLOCK:
        return MIN_BLOCK
    if divisions:
        parts = divisions[min(max(size.bit_length() - 21, 0), INTERVALS - 1)]
        if parts > 1 and size > MIN_BLOCK * parts:
            return _next_step(size, parts)
    return -(-size // MIN_BLOCK) * MIN_BLOCK


def _next_step(size: int, parts: int) -> int:
    floor = 1 << (size.bit_length() - 1)
    if floor == size:
        return size
    step = floor >> (parts.bit_length() - 1)
    return -(-size // step) * step if step else 2 * floor


def segment_size(size: int, large_segment: int = LARGE_SEGMENT) -> int:
    """Return the bytes requested from the driver for a block of `size` bytes (already rounded)."""
    if size <= SMALL:
        return SMALL_SEGMENT
    if size < MIN_LARGE:
        return large_segment
    return -(-size // ROUND_LARGE) * ROUND_LARGE
