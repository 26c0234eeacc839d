"""`Segments`: the last segments of a run and the distinct entries in them, in bounded memory."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from typing import NamedTuple

from gapless.model.programme import MOST_ITEMS, Entry, Programme, Segment, Shape

MOST_ENTRIES = 12_000
"""Distinct entries of all segments kept together, some 12 MB: training whose shapes change makes new ones in
each step. One segment alone may have as many as items."""
MOST_SEGMENTS = 64
"""Segments kept, which `chosen` imagines at most."""


class _Closed(NamedTuple):
    """A segment that has ended: its items as numbers of entries."""

    tick: int
    items: list[int]
    evaluates: bool
    arrived: tuple[tuple[str, Shape], ...]


class Segments:
    """Entries are numbered as they come; those of no kept segment are forgotten. A segment of more than
    `MOST_ITEMS` items is left out."""

    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {}
        """The number of the entry with each key."""
        self.items: list[int] = []
        """Numbers of the entries of the segment that has not ended."""
        self.left_out = False
        """Whether a segment was too long to be kept."""
        self._entries: dict[int, tuple[Hashable, Entry]] = {}
        self._closed: deque[_Closed] = deque()
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
        """Put an item at position `at` of the current segment (-1: behind everything)."""
        if at < 0:
            self.items.append(number)
        else:
            self.items.insert(at, number)
        if len(self.items) > MOST_ITEMS:
            self._too_long = True
            self._clear()

    def entry(self, number: int) -> Entry:
        return self._entries[number][1]

    def close(self, tick: int, evaluates: bool, arrived: tuple[tuple[str, Shape], ...]) -> None:
        """End the current segment, and forget the oldest ones where there are too many."""
        if self._too_long:
            self.left_out = True
            self._clear()
        else:
            self._closed.append(_Closed(tick, self.items, evaluates, arrived))
            self._kept_items += len(self.items)
            self._uses.update(set(self.items))
        self.items, self._too_long = [], False
        while len(self._closed) > 1 and self._too_much():
            self._forget_oldest()

    def _too_much(self) -> bool:
        return (
            self._kept_items > MOST_ITEMS
            or len(self._entries) > MOST_ENTRIES
            or len(self._closed) > MOST_SEGMENTS
        )

    def _forget_oldest(self) -> None:
        oldest = self._closed.popleft()
        self._kept_items -= len(oldest.items)
        for number in set(oldest.items):
            self._uses[number] -= 1
            if not self._uses[number]:
                self._forget(number)

    def _clear(self) -> None:
        """Drop the items of the current segment, and the entries that only it has."""
        self.items.clear()
        for number in [one for one in self._entries if one not in self._uses]:
            self._forget(number)

    def _forget(self, number: int) -> None:
        key, _ = self._entries.pop(number)
        del self.numbers[key]
        self._uses.pop(number, None)

    def programme(self) -> Programme | None:
        """What was kept; None where no segment has ended."""
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
