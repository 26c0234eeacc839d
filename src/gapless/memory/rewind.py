"""The state of the allocator when recording began: the trace undone, last entry first, from its final state.

A snapshot shows how memory lies at its end. Each entry of the trace says what changed, so that walking back
gives the beginning. One thing is not in the trace: it names the bytes that were asked for and not the block
that was given, which in the large pool may be up to 1 MiB larger. Free memory of the large pool is never in
pieces that small, so that such a piece behind a block belongs to it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable
from typing import Any

from gapless.memory.settings import Settings
from gapless.memory.sizes import SMALL, SMALL_SEGMENT, round_size

FREE, USED, WAITING = range(3)
FREES = ("segment_free", "segment_unmap")
"""Actions that give memory back."""


class Inconsistent(Exception):
    """The trace does not lead to the final state."""


class Piece:
    """A block, as the snapshot shows it."""

    __slots__ = ("frames", "requested", "size", "state")

    def __init__(self, size: int, state: int, requested: int = 0, frames: object = None) -> None:
        self.size = size
        self.state = state
        self.requested = requested
        self.frames = frames


class Range:
    """A segment, or a mapped range of an expandable one.

    `starts` are the addresses of its pieces. `sure` says that `small` is known, and not told by the size.
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
    """The final state, on which :meth:`undo` walks back.

    `frees_tell` says that what is given back has the frames of who asked for it, and not of who let it go.
    """

    def __init__(self, settings: Settings, frees_tell: bool = False) -> None:
        self.settings = settings
        self.frees_tell = frees_tell
        self.ranges: dict[int, Range] = {}
        self.pieces: dict[int, Piece] = {}
        self.reserved = 0
        self._order: list[int] = []
        self._undo: dict[str, Callable[[Any], None]] = {
            "alloc": self._alloc,
            "free_completed": self._free_completed,
            "free_requested": self._free_requested,
            "segment_alloc": self._segment_alloc,
            "segment_free": self._segment_free,
            "segment_map": self._segment_map,
            "segment_unmap": self._segment_unmap,
        }

    def add(self, new: Range, pieces: Iterable[tuple[int, Piece]]) -> None:
        """A range of the final state with its pieces, by address."""
        at = bisect_left(self._order, new.address)
        behind = self._order[at] if at < len(self._order) else None
        before = self.ranges[self._order[at - 1]] if at else None
        if (behind is not None and behind < new.address + new.size) or (
            before is not None and before.address + before.size > new.address
        ):
            raise Inconsistent("segments overlap")
        self.ranges[new.address] = new
        self._order.insert(at, new.address)
        self.reserved += new.size
        for address, piece in pieces:
            new.starts.append(address)
            self.pieces[address] = piece

    def undo(self, entry: Any) -> None:
        """Take back what `entry` did.

        Raises:
            Inconsistent: it cannot have been done.
        """
        undo = self._undo.get(entry["action"])
        if undo is not None:
            undo(entry)

    def around(self, address: int) -> Range | None:
        """The range that `address` lies in."""
        at = bisect_right(self._order, address) - 1
        found = self.ranges[self._order[at]] if at >= 0 else None
        return found if found is not None and address < found.address + found.size else None

    # Undoing, by action ---------------------------------------------------------------------------

    def _alloc(self, entry: Any) -> None:
        piece = self.pieces.get(entry["addr"])
        if piece is None or piece.state != USED or piece.size < entry["size"]:
            raise Inconsistent("an allocation in the trace is at the wrong place")
        piece.state = FREE
        self._join(self._range(entry["addr"]), entry["addr"])

    def _free_requested(self, entry: Any) -> None:
        piece = self.pieces.get(entry["addr"])
        if piece is None or piece.state != WAITING:
            raise Inconsistent("a tensor was freed twice, or never allocated")
        piece.state = USED

    def _free_completed(self, entry: Any) -> None:
        address, requested = entry["addr"], entry["size"]
        size = round_size(requested, self.settings.divisions)
        home = self._range(address)
        at = bisect_right(home.starts, address) - 1
        start = home.starts[at]
        free = self.pieces[start]
        if free.state != FREE or start + free.size < address + size:
            raise Inconsistent("freed memory was in use")
        whole = not home.small and not home.expandable
        before, behind = address - start, start + free.size - address - size
        if whole and (behind <= SMALL or size >= self.settings.max_split_size):
            size, behind = size + behind, 0
        piece = Piece(size, WAITING, requested, entry.get("frames") if self.frees_tell else None)
        self._cut(home, at, before, piece, behind, whole)

    def _cut(self, home: Range, at: int, before: int, piece: Piece, behind: int, whole: bool) -> None:
        """Put `piece` into the free piece at position `at`, with `before` and `behind` bytes left free."""
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
            raise Inconsistent("a segment in the trace does not exist")
        if len(home.starts) != 1 or self.pieces[home.address].state != FREE:
            raise Inconsistent("a segment was in use before it existed")
        self._drop(home)

    def _segment_free(self, entry: Any) -> None:
        address, size = entry["addr"], entry["size"]
        new = Range(address, size, entry["stream"], size <= SMALL_SEGMENT, False, pool_of(entry))
        self.add(new, [(address, Piece(size, FREE))])

    def _segment_map(self, entry: Any) -> None:
        """Without these pages the range is cut in two, or gone."""
        address, end = entry["addr"], entry["addr"] + entry["size"]
        home = self._range(address)
        at = bisect_right(home.starts, address) - 1
        start = home.starts[at]
        free = self.pieces[start]
        if not home.expandable or free.state != FREE or start + free.size < end:
            raise Inconsistent("pages were in use before they existed")
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
            after = Range(end, last - end, home.stream, home.small, True, home.pool)
            after.starts, after.sure = behind, home.sure
            self.ranges[end] = after
            insort(self._order, end)

    def _shorten(self, home: Range, end: int) -> None:
        home.size = end - home.address
        if not home.size:
            del self.ranges[home.address]
            del self._order[bisect_left(self._order, home.address)]

    def _segment_unmap(self, entry: Any) -> None:
        """With these pages, ranges before and behind become one."""
        address, size = entry["addr"], entry["size"]
        small = size % self.settings.large_segment_size != 0
        new = Range(address, size, entry["stream"], small, True, pool_of(entry))
        new.sure = small
        self.add(new, [(address, Piece(size, FREE))])
        at = bisect_left(self._order, address)
        for first, second in ((at, at + 1), (at - 1, at)):
            if first >= 0 and second < len(self._order):
                left, right = self.ranges[self._order[first]], self.ranges[self._order[second]]
                self._weld(left, right)
        self._join(self._range(address), address)

    def _weld(self, left: Range, right: Range) -> None:
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

    def _range(self, address: int) -> Range:
        found = self.around(address)
        if found is None:
            raise Inconsistent("memory in the trace is in no segment")
        return found

    def _drop(self, home: Range) -> None:
        self.reserved -= home.size
        del self.ranges[home.address]
        del self._order[bisect_left(self._order, home.address)]
        for start in home.starts:
            del self.pieces[start]

    def _join(self, home: Range, address: int) -> None:
        """Join the free piece that begins at `address`, or holds it, to its free neighbours."""
        at = bisect_right(home.starts, address) - 1
        if at + 1 < len(home.starts) and self.pieces[home.starts[at + 1]].state == FREE:
            self.pieces[home.starts[at]].size += self.pieces.pop(home.starts.pop(at + 1)).size
        if at and self.pieces[home.starts[at - 1]].state == FREE:
            self.pieces[home.starts[at - 1]].size += self.pieces.pop(home.starts.pop(at)).size


def pool_of(entry: Any) -> str:
    """The private pool of a segment or an entry, "" where it is the common one or is not told."""
    found = entry.get("segment_pool_id", entry.get("pool_id"))
    if isinstance(found, (tuple, list)) and len(found) == 2 and any(found):
        return f"{found[0]},{found[1]}"
    return ""
