"""Reconstruct the allocator's state when recording began by undoing the trace from its final state.

The trace lacks one thing: it records the requested bytes and not the size of the block, which in the large
pool may be up to 1 MiB larger. Free memory of the large pool is never in pieces that small, so such a piece
behind a block belongs to it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable
from typing import Any

from gapless.memory.settings import Settings
from gapless.memory.sizes import SMALL, SMALL_SEGMENT, round_size

FREE, USED, WAITING = range(3)
FREES = ("segment_free", "segment_unmap")
"""Actions that return memory to the driver."""


class InconsistentTrace(Exception):
    """The trace does not lead to the final state."""


class Piece:
    """A block as the snapshot shows it."""

    __slots__ = ("frames", "requested", "size", "state")

    def __init__(self, size: int, state: int, requested: int = 0, frames: object = None) -> None:
        self.size = size
        self.state = state
        self.requested = requested
        self.frames = frames


class SegmentRange:
    """A segment, or a mapped range of an expandable one.

    `starts` are the addresses of its pieces. `sure` means that `small` is known and not guessed from the
    size.
    """

    __slots__ = ("address", "expandable", "pool", "size", "small", "starts", "stream", "sure")

    def __init__(
        self, address: int, size: int, stream: int, small: bool, expandable: bool = False, pool: str = ""
    ) -> None:
        self.address = address
        self.size = size
        self.stream = stream
        self.small = small
        self.expandable = expandable
        self.pool = pool
        self.starts: list[int] = []
        self.sure = True


class Rewind:
    """The final state, which :meth:`undo` takes back entry by entry.

    With `frees_tell` the trace's frees carry the frames of the allocation, not those of the free.
    """

    def __init__(self, settings: Settings, frees_tell: bool = False) -> None:
        self.settings = settings
        self.frees_tell = frees_tell
        self.ranges: dict[int, SegmentRange] = {}
        self.pieces: dict[int, Piece] = {}
        self.reserved = 0
        self._order: list[int] = []
        self._undo: dict[str, Callable[[Any], None]] = {
            "alloc": self._alloc,
            "free_completed": self._complete_free,
            "free_requested": self._request_free,
            "segment_alloc": self._segment_alloc,
            "segment_free": self._segment_free,
            "segment_map": self._segment_map,
            "segment_unmap": self._segment_unmap,
        }

    def add(self, new: SegmentRange, pieces: Iterable[tuple[int, Piece]]) -> None:
        """Add a range of the final state with its pieces, by address."""
        at = bisect_left(self._order, new.address)
        behind = self._order[at] if at < len(self._order) else None
        before = self.ranges[self._order[at - 1]] if at else None
        if (behind is not None and behind < new.address + new.size) or (
            before is not None and before.address + before.size > new.address
        ):
            raise InconsistentTrace("segments overlap")
        self.ranges[new.address] = new
        self._order.insert(at, new.address)
        self.reserved += new.size
        for address, piece in pieces:
            new.starts.append(address)
            self.pieces[address] = piece

    def undo(self, entry: Any) -> None:
        """Undo `entry`.

        Raises:
            InconsistentTrace: it is impossible in this state.
        """
        undo = self._undo.get(entry["action"])
        if undo is not None:
            undo(entry)

    def around(self, address: int) -> SegmentRange | None:
        """Return the range that contains `address`; None if there is none."""
        at = bisect_right(self._order, address) - 1
        candidate = self.ranges[self._order[at]] if at >= 0 else None
        return candidate if candidate is not None and address < candidate.address + candidate.size else None

    # Undoing, by action ---------------------------------------------------------------------------

    def _alloc(self, entry: Any) -> None:
        piece = self.pieces.get(entry["addr"])
        if piece is None or piece.state != USED or piece.size < entry["size"]:
            raise InconsistentTrace("an allocation in the trace is at the wrong place")
        piece.state = FREE
        self._join(self._range(entry["addr"]), entry["addr"])

    def _request_free(self, entry: Any) -> None:
        piece = self.pieces.get(entry["addr"])
        if piece is None or piece.state != WAITING:
            raise InconsistentTrace("a tensor was freed twice, or never allocated")
        piece.state = USED

    def _complete_free(self, entry: Any) -> None:
        address, requested = entry["addr"], entry["size"]
        size = round_size(requested, self.settings.divisions)
        home = self._range(address)
        at = bisect_right(home.starts, address) - 1
        start = home.starts[at]
        free = self.pieces[start]
        if free.state != FREE or start + free.size < address + size:
            raise InconsistentTrace("freed memory was in use")
        whole = not home.small and not home.expandable
        before, behind = address - start, start + free.size - address - size
        if whole and (behind <= SMALL or size >= self.settings.max_split_size):
            size, behind = size + behind, 0
        piece = Piece(size, WAITING, requested, entry.get("frames") if self.frees_tell else None)
        self._cut(home, at, before, piece, behind, whole)

    def _cut(self, home: SegmentRange, at: int, before: int, piece: Piece, behind: int, whole: bool) -> None:
        """Put `piece` into the free piece at index `at`, leaving `before` and `behind` bytes around it
        free.
        """
        start = home.starts[at]
        address = start + before
        if whole and 0 < before <= SMALL and at:
            self.pieces[home.starts[at - 1]].size += before
            del self.pieces[start]
            home.starts[at] = address
        elif before:
            self.pieces[start].size = before
            home.starts.insert(at + 1, address)
            at += 1
        self.pieces[address] = piece
        if behind:
            home.starts.insert(at + 1, address + piece.size)
            self.pieces[address + piece.size] = Piece(behind, FREE)

    def _segment_alloc(self, entry: Any) -> None:
        home = self.ranges.get(entry["addr"])
        if home is None or home.size != entry["size"] or home.expandable:
            raise InconsistentTrace("a segment in the trace does not exist")
        if len(home.starts) != 1 or self.pieces[home.address].state != FREE:
            raise InconsistentTrace("a segment was in use before it existed")
        self._drop(home)

    def _segment_free(self, entry: Any) -> None:
        address, size = entry["addr"], entry["size"]
        new = SegmentRange(address, size, entry["stream"], size <= SMALL_SEGMENT, False, pool_of(entry))
        self.add(new, [(address, Piece(size, FREE))])

    def _segment_map(self, entry: Any) -> None:
        """Remove pages: the range is cut in two, shortened, or gone."""
        address, end = entry["addr"], entry["addr"] + entry["size"]
        home = self._range(address)
        at = bisect_right(home.starts, address) - 1
        start = home.starts[at]
        free = self.pieces[start]
        if not home.expandable or free.state != FREE or start + free.size < end:
            raise InconsistentTrace("pages were in use before they existed")
        self.reserved -= end - address
        last = home.address + home.size
        behind = home.starts[at + 1 :]
        del home.starts[at + 1 :]
        rest = start + free.size - end
        if start < address:
            free.size = address - start
        else:
            home.starts.pop()
            del self.pieces[start]
        if rest:
            self.pieces[end] = Piece(rest, FREE)
            behind.insert(0, end)
        self._shorten(home, address)
        if end < last:
            after = SegmentRange(end, last - end, home.stream, home.small, True, home.pool)
            after.starts, after.sure = behind, home.sure
            self.ranges[end] = after
            insort(self._order, end)

    def _shorten(self, home: SegmentRange, end: int) -> None:
        home.size = end - home.address
        if not home.size:
            del self.ranges[home.address]
            del self._order[bisect_left(self._order, home.address)]

    def _segment_unmap(self, entry: Any) -> None:
        """Restore pages; ranges before and behind them become one."""
        address, size = entry["addr"], entry["size"]
        small = size % self.settings.large_segment_size != 0
        new = SegmentRange(address, size, entry["stream"], small, True, pool_of(entry))
        new.sure = small
        self.add(new, [(address, Piece(size, FREE))])
        at = bisect_left(self._order, address)
        for first, second in ((at, at + 1), (at - 1, at)):
            if first >= 0 and second < len(self._order):
                left, right = self.ranges[self._order[first]], self.ranges[self._order[second]]
                self._merge_adjacent(left, right)
        self._join(self._range(address), address)

    def _merge_adjacent(self, left: SegmentRange, right: SegmentRange) -> None:
        same = (left.stream, left.expandable) == (right.stream, right.expandable)
        if not same or left.address + left.size != right.address:
            return
        if right.sure and not left.sure:
            left.small, left.sure = right.small, True
        left.size += right.size
        left.starts += right.starts
        del self.ranges[right.address]
        del self._order[bisect_left(self._order, right.address)]

    # Helpers --------------------------------------------------------------------------------------

    def _range(self, address: int) -> SegmentRange:
        home = self.around(address)
        if home is None:
            raise InconsistentTrace("memory in the trace is in no segment")
        return home

    def _drop(self, home: SegmentRange) -> None:
        self.reserved -= home.size
        del self.ranges[home.address]
        del self._order[bisect_left(self._order, home.address)]
        for start in home.starts:
            del self.pieces[start]

    def _join(self, home: SegmentRange, address: int) -> None:
        """Merge the free piece that contains `address` with its free neighbours."""
        at = bisect_right(home.starts, address) - 1
        if at + 1 < len(home.starts) and self.pieces[home.starts[at + 1]].state == FREE:
            self.pieces[home.starts[at]].size += self.pieces.pop(home.starts.pop(at + 1)).size
        if at and self.pieces[home.starts[at - 1]].state == FREE:
            self.pieces[home.starts[at - 1]].size += self.pieces.pop(home.starts.pop(at)).size


def pool_of(entry: Any) -> str:
    """Return the private pool of a segment or an entry; "" for the common pool or if unknown."""
    pool_id = entry.get("segment_pool_id", entry.get("pool_id"))
    if isinstance(pool_id, (tuple, list)) and len(pool_id) == 2 and any(pool_id):
        return f"{pool_id[0]},{pool_id[1]}"
    return ""
