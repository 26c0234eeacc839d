"""`Segments`: the last segments of a run and the distinct entries in them, in bounded memory."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from typing import NamedTuple

from gapless.model.programme import MAX_ITEMS, Entry, Programme, Segment, Shape

MAX_ENTRIES = 12_000
"""Distinct entries kept in all segments together, some 12 MB: changing shapes make new ones in each step. One
segment alone may have as many as items."""
MAX_SEGMENTS = 64
"""Number of segments kept: the most that `chosen` uses."""


class _ClosedSegment(NamedTuple):
    """A segment that has ended: its items as numbers of entries."""

    tick: int
    items: list[int]
    evaluates: bool
    arrived: tuple[tuple[str, Shape], ...]


class Segments:
    """Segments with numbered entries; entries of no kept segment are dropped.

    A segment of more than `MOST_ITEMS` items is left out.
    """

    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {}
        """The number of the entry with each key."""
        self.items: list[int] = []
        """Entry numbers of the current segment."""
        self.left_out = False
        """Whether a segment was too long to be kept."""
        self._entries: dict[int, tuple[Hashable, Entry]] = {}
        self._closed: deque[_ClosedSegment] = deque()
        self._uses: Counter[int] = Counter()
        self._kept_items = 0
        self._next_number = 0
        self._too_long = False

    def new(self, key: Hashable, entry: Entry) -> int:
        """Number an entry whose key has none."""
        number = self.numbers[key] = self._next_number
        self._next_number += 1
        self._entries[number] = (key, entry)
        return number

    def add(self, number: int, at: int) -> None:
        """Insert an item at position `at` of the current segment (-1: at the end)."""
        if at < 0:
            self.items.append(number)
        else:
            self.items.insert(at, number)
        if len(self.items) > MAX_ITEMS:
            self._too_long = True
            self._clear()

    def entry(self, number: int) -> Entry:
        return self._entries[number][1]

    def close(self, tick: int, evaluates: bool, arrived: tuple[tuple[str, Shape], ...]) -> None:
        """End the current segment, and drop the oldest ones if there are too many."""
        if self._too_long:
            self.left_out = True
            self._clear()
        else:
            self._closed.append(_ClosedSegment(tick, self.items, evaluates, arrived))
            self._kept_items += len(self.items)
            self._uses.update(set(self.items))
        self.items, self._too_long = [], False
        while len(self._closed) > 1 and self._is_full():
            self._drop_oldest()

    def _is_full(self) -> bool:
        return (
            self._kept_items > MAX_ITEMS
            or len(self._entries) > MAX_ENTRIES
            or len(self._closed) > MAX_SEGMENTS
        )

    def _drop_oldest(self) -> None:
        oldest = self._closed.popleft()
        self._kept_items -= len(oldest.items)
        for number in set(oldest.items):
            self._uses[number] -= 1
            if not self._uses[number]:
                self._drop_entry(number)

    def _clear(self) -> None:
        """Drop the items of the current segment, and the entries that only it has."""
        self.items.clear()
        for number in [candidate for candidate in self._entries if candidate not in self._uses]:
            self._drop_entry(number)

    def _drop_entry(self, number: int) -> None:
        key, _ = self._entries.pop(number)
        del self.numbers[key]
        self._uses.pop(number, None)

    def programme(self) -> Programme | None:
        """Return the kept segments; None if no segment has ended."""
        if not self._closed and not self.left_out:
            return None
        bodies: dict[tuple[int, ...], int] = {}
        used: dict[int, int] = {}
        segments = []
        for closed in self._closed:
            body = tuple(used.setdefault(number, len(used)) for number in closed.items)
            segments.append(
                Segment(
                    tick=closed.tick,
                    body=bodies.setdefault(body, len(bodies)),
                    evaluates=closed.evaluates,
                    arrived=closed.arrived,
                )
            )
        return Programme(
            entries=tuple(self.entry(number) for number in used),
            bodies=tuple(bodies),
            segments=tuple(segments),
            truncated=self.left_out,
        )
