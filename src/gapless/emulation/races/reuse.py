"""Memory freed while another stream may still use it, and the request that may reuse it.

The caching allocator knows the stream that memory was allocated on, and those named by ``record_stream``: it
reuses a block for the next request of that stream at once, whatever other streams still do with it. Which
block a request gets is not known; here any request that is not larger, and of the same pool, may get it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gapless.emulation.races.access_log import MemoryAccess, StorageRecord
from gapless.emulation.races.clocks import Clocks

_MAX_SMALL_BLOCK = 1 << 20
"""Bytes up to which blocks come from the pool of small ones (c10/cuda/CUDACachingAllocator.cpp)."""
_BLOCK_ROUNDING = 512
"""Bytes to a multiple of which the caching allocator rounds sizes."""
_MAX_FREED = 256
"""Freed blocks kept per stream, to bound the search."""


class FreedBlock(NamedTuple):
    """A freed block of `size` bytes, its `use` by another stream, and where it was freed."""

    size: int
    use: MemoryAccess
    writes: bool
    stack: Any


ReuseListener = Callable[[FreedBlock, MemoryAccess], None]


class Reuse:
    """Freed blocks that other streams may still use, by the stream that they belong to."""

    def __init__(self, clocks: Clocks, listener: ReuseListener) -> None:
        self._clocks = clocks
        self._listener = listener
        self.freed: dict[int, list[FreedBlock]] = {}

    def add_freed(self, record: StorageRecord, stack: Any) -> None:
        """Add a freed storage if uses by other streams may be pending."""
        home, size = record.home, record.whole.end
        for writes, uses in ((True, record.writes), (False, record.reads)):
            for use in uses:
                if use.track in (home, *record.kept) or self._clocks.ordered(home, use.track, use.mark):
                    continue
                blocks = self.freed.setdefault(home, [])
                del blocks[: max(len(blocks) - _MAX_FREED, 0)]
                blocks.append(FreedBlock(size, use, writes, stack))

    def check_request(self, track: int, size: int, use: MemoryAccess) -> None:
        """Report freed blocks that a request of `size` bytes in the stream `track` may get."""
        left = []
        for block in self.freed[track]:
            if self._clocks.ordered(track, block.use.track, block.use.mark):
                continue
            if 0 < size < block.size + _BLOCK_ROUNDING and (size <= _MAX_SMALL_BLOCK) == (
                block.size <= _MAX_SMALL_BLOCK
            ):
                self._listener(block, use)
            else:
                left.append(block)
        self.freed[track] = left
