"""`RaceLog`: the races found, one per pair of places."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from gapless.emulation.races.clocks import Clocks, RecordedEvent
from gapless.emulation.support import stacks
from gapless.emulation.support.local import local
from gapless.emulation.support.places import HOST
from gapless.model.race import Access, Cause, Race, RaceKind
from gapless.model.source import Stack

CPU = -1
"""The host's number where a track is expected."""
_MAX_RACES = 500
"""Races kept; nobody reads more."""
_MAX_WAITS = 16
"""Recent waits searched for the cause of a race."""


class EventWait(NamedTuple):
    """A wait of `track` (or `CPU`) for an event, after work number `mark`."""

    track: int
    moment: RecordedEvent | None
    mark: int
    stack: Any


class RaceAccess(NamedTuple):
    """One access of a race: `track` did `action`."""

    track: int
    mark: int
    action: str
    writes: bool
    stack: Any


class RaceLog:
    """Races by pair of places, each with how often it occurred."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._entries: dict[Any, _RaceEntry] = {}
        self._waits: deque[EventWait] = deque(maxlen=_MAX_WAITS)
        self.listeners: list[Callable[[Race], None]] = []
        self.tick: Callable[[], int] = lambda: 0
        self.times_met = 0

    def record_wait(self, track: int, moment: RecordedEvent | None) -> None:
        """Remember who waited for which event: a wrong wait explains a race."""
        self._waits.append(EventWait(track, moment, self._clocks.mark, here()))

    def add(
        self, kind: RaceKind, earlier: RaceAccess, later: RaceAccess, nbytes: int, freed: Any = None
    ) -> None:
        """Add or count a race of `earlier` and `later`, and notify listeners of new ones."""
        self.times_met += 1
        key = (kind, raw(earlier.stack), raw(later.stack), earlier.action, later.action)
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= _MAX_RACES:
                return
            cause = self._cause(earlier, later)
            entry = self._entries[key] = _RaceEntry(kind, earlier, later, raw(freed) if freed else (), cause)
            entry.names = self.name(earlier.track), self.name(later.track)
        entry.times += 1
        entry.steps.add(self.tick())
        entry.bytes = max(entry.bytes, nbytes)
        if self.listeners and entry.times == 1:
            race = entry.race()
            for listener in tuple(self.listeners):
                listener(race)

    def _cause(self, earlier: RaceAccess, later: RaceAccess) -> tuple[Cause, Any]:
        """Return why the last wait of `later` did not order it after `earlier`, and that wait's place."""
        for wait in reversed(self._waits):
            if wait.track != later.track:
                continue
            if wait.moment is None:
                return "unrecorded-event", wait.stack
            if wait.mark < earlier.mark:
                break  # it was for something else
            if wait.moment.track == earlier.track and wait.moment.mark < earlier.mark:
                return "early-event", wait.moment.stack
            if wait.moment.track != earlier.track:
                return "other-event", wait.moment.stack
        return "", None

    def name(self, track: int) -> str:
        """Return a readable name: ``stream 1``, ``the default stream of cuda:1``, ``the CPU``."""
        if track == CPU:
            return "the CPU"
        places = list(self._clocks.tracks)
        device, stream = places[track]
        if stream < 0:
            return "NCCL's stream"
        several = len({index for index, _ in places}) > 1
        of = f" of cuda:{device}" if several else ""
        if stream == 0:
            return f"the default stream{of}"
        number = sum(index == device and stream_id > 0 for index, stream_id in places[: track + 1])
        return f"stream {number}{of}"

    def races(self) -> tuple[Race, ...]:
        """Return all races in the order of their first occurrence."""
        return tuple(entry.race() for entry in self._entries.values())

    def clear(self) -> None:
        """Drop all races."""
        self._entries.clear()


class _RaceEntry:
    def __init__(
        self,
        kind: RaceKind,
        earlier: RaceAccess,
        later: RaceAccess,
        freed: stacks.RawStack,
        cause: tuple[Cause, Any],
    ) -> None:
        self.kind = kind
        self.sides = earlier, later
        self.freed = freed
        self.cause = cause
        self.names = "", ""
        self.times = 0
        self.steps: set[int] = set()
        self.bytes = 0
        self.backward = local.backward != HOST

    def race(self) -> Race:
        first, second = (
            Access(what=side.action, where=name, writes=side.writes, stack=_stack(side.stack))
            for side, name in zip(self.sides, self.names, strict=True)
        )
        cause, place = self.cause
        return Race(
            kind=self.kind, earlier=first, later=second, freed=stacks.resolve(self.freed), cause=cause,
            cause_stack=_stack(place), times=self.times, steps=len(self.steps), bytes=self.bytes,
            backward=self.backward,
        )  # fmt: skip


def here() -> Any:
    """Return the current place, unresolved: cheap until `raw` reads it."""
    return (stacks.gather(), local.above) if local.above else stacks.gather()


def raw(place: Any) -> stacks.RawStack:
    """Return a place from `here` in a comparable form."""
    if place is None:
        return ()
    traceback, above = place if type(place) is tuple else (place, ())
    return stacks.to_raw_stack(traceback) + above


def _stack(place: Any) -> Stack:
    return stacks.resolve(raw(place))
