"""`LaterRecorder`: sums instead of single steps, for the later part of a long run."""

from __future__ import annotations

from collections import Counter

from gapless.model import Event, Phase
from gapless.model.later import Later, MarkCount

MAX_TICKS = 10_000
"""Marks that advance the tick up to which each is kept with its waits: some 10 MB for a tiny step."""
MAX_EVENTS = 100_000
"""Events that are kept one by one, some 40 MB: a step may wait at hundreds of lines."""


class LaterRecorder:
    """Counts waits by site and phase, and marks by kind and name: bounded by the lines of the code."""

    def __init__(self) -> None:
        self._ticks = 0
        self._marks: Counter[tuple[str, str]] = Counter()
        self._events: dict[tuple[int, Phase], Event] = {}
        self._sums: dict[tuple[int, Phase], list[int]] = {}

    def wait(self, first: Event) -> None:
        """Count the waits of `first`, the first event of its site in this tick."""
        key = first.site, first.phase
        self._events.setdefault(key, first)
        sums = self._sums.setdefault(key, [0, 0, 0])
        sums[0] += first.calls
        sums[1] += first.waits
        sums[2] += first.bytes

    def mark(self, kind: str, name: str) -> None:
        """Count a mark that advances the tick."""
        self._ticks += 1
        self._marks[kind, name] += 1

    def later(self) -> Later:
        """Return the counts."""
        return Later(
            ticks=self._ticks,
            marks=tuple(
                MarkCount(kind=kind, name=name, count=count) for (kind, name), count in self._marks.items()
            ),
            events=tuple(self._sum_event(key) for key in self._events),
        )

    def _sum_event(self, key: tuple[int, Phase]) -> Event:
        """Return the first event of a site and phase, with the sums of all."""
        first = self._events[key]
        calls, waits, nbytes = self._sums[key]
        return Event(
            site=first.site,
            tick=first.tick,
            time=first.time,
            calls=calls,
            waits=waits,
            bytes=nbytes,
            phase=first.phase,
            strand=first.strand,
        )
