"""Memory that is given back while another stream may still use it, and to whom the allocator gives it.

The caching allocator knows of the stream that memory was taken in, and of those named by ``record_stream``:
it gives a block to the next request of its own stream at once, whatever another stream still does with it.
Which block a request gets is the allocator's to say; here any request that is not larger, and of the same
pool, may get it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gapless.emulation.races.books import Record, Use
from gapless.emulation.races.clocks import Clocks

_SMALL = 1 << 20
"""Bytes up to which blocks come from the pool of small ones (c10/cuda/CUDACachingAllocator.cpp)."""
_ROUND = 512
_MOST = 256


class Freed(NamedTuple):
    """A block of `size` bytes that another stream uses, and where it was given back."""

    size: int
    use: Use
    writes: bool
    stack: Any


Found = Callable[[Freed, Use], None]


class Reuse:
    """Blocks in use elsewhere that were given back, by the stream that they belong to."""

    def __init__(self, clocks: Clocks, found: Found) -> None:
        self._clocks = clocks
        self._found = found
        self.freed: dict[int, list[Freed]] = {}

    def ended(self, record: Record, stack: Any) -> None:
        """The storage with that record is no more."""
        home, size = record.home, record.whole.end
        for writes, uses in ((True, record.writes), (False, record.reads)):
            for use in uses:
                if use.track in (home, *record.kept) or self._clocks.ordered(home, use.track, use.mark):
                    continue
                blocks = self.freed.setdefault(home, [])
                del blocks[: max(len(blocks) - _MOST, 0)]
                blocks.append(Freed(size, use, writes, stack))

    def taken(self, track: int, size: int, use: Use) -> None:
        """`use` asks for `size` bytes in the stream `track`."""
        left = []
        for block in self.freed[track]:
            if self._clocks.ordered(track, block.use.track, block.use.mark):
                continue
            if 0 < size < block.size + _ROUND and (size <= _SMALL) == (block.size <= _SMALL):
                self._found(block, use)
            else:
                left.append(block)
        self.freed[track] = left
