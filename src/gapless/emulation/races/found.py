"""The races that were found, each pair of places once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from gapless.emulation.races.clocks import Clocks, Moment
from gapless.emulation.support import stacks
from gapless.emulation.support.local import local
from gapless.emulation.support.places import HOST
from gapless.model.race import Access, Cause, Race, RaceKind
from gapless.model.source import Stack

CPU = -1
"""Stands for the host where a track is asked for."""
_MOST = 500
_WAITS = 16


class Wait(NamedTuple):
    """Somebody (`track`, or `CPU`) waited for an event, after work number `mark`."""

    track: int
    moment: Moment | None
    mark: int
    stack: Any


class Side(NamedTuple):
    """An access, as it is seen: `track` did `what`."""

    track: int
    mark: int
    what: str
    writes: bool
    stack: Any


class Races:
    """Pairs of places, with how often each of them was met."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._found: dict[Any, _Entry] = {}
        self._waits: deque[Wait] = deque(maxlen=_WAITS)
        self.listeners: list[Callable[[Race], None]] = []
        self.tick: Callable[[], int] = lambda: 0
        self.met = 0

    def waited(self, track: int, moment: Moment | None) -> None:
        """Keep who waited for which event: where that does not help, it is why."""
        self._waits.append(Wait(track, moment, self._clocks.mark, here()))

    def add(self, kind: RaceKind, earlier: Side, later: Side, nbytes: int, freed: Any = None) -> None:
        """`earlier` and `later` race."""
        self.met += 1
        key = (kind, raw(earlier.stack), raw(later.stack), earlier.what, later.what)
        entry = self._found.get(key)
        if entry is None:
            if len(self._found) >= _MOST:
                return
            cause = self._cause(earlier, later)
            entry = self._found[key] = _Entry(kind, earlier, later, raw(freed) if freed else (), cause)
            entry.names = self.name(earlier.track), self.name(later.track)
        entry.times += 1
        entry.steps.add(self.tick())
        entry.bytes = max(entry.bytes, nbytes)
        if self.listeners and entry.times == 1:
            race = entry.race()
            for listener in tuple(self.listeners):
                listener(race)

    def _cause(self, earlier: Side, later: Side) -> tuple[Cause, Any]:
        """Why the wait that there is does not help."""
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
        """``stream 1``, ``the default stream of cuda:1``, ``the CPU``."""
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
        number = sum(index == device and one > 0 for index, one in places[: track + 1])
        return f"stream {number}{of}"

    def races(self) -> tuple[Race, ...]:
        """All of them, in the order in which they were first met."""
        return tuple(entry.race() for entry in self._found.values())

    def clear(self) -> None:
        """Forget what was found."""
        self._found.clear()


class _Entry:
    def __init__(
        self, kind: RaceKind, earlier: Side, later: Side, freed: stacks.RawStack, cause: tuple[Cause, Any]
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
            Access(what=side.what, where=name, writes=side.writes, stack=_stack(side.stack))
            for side, name in zip(self.sides, self.names, strict=True)
        )
        cause, place = self.cause
        return Race(
            kind=self.kind, earlier=first, later=second, freed=stacks.resolve(self.freed), cause=cause,
            cause_stack=_stack(place), times=self.times, steps=len(self.steps), bytes=self.bytes,
            backward=self.backward,
        )  # fmt: skip


def here() -> Any:
    """This place: little more than nothing until somebody reads it."""
    return (stacks.gather(), local.above) if local.above else stacks.gather()


def raw(place: Any) -> stacks.RawStack:
    """What `here` gave, as numbers that can be compared."""
    if place is None:
        return ()
    traceback, above = place if type(place) is tuple else (place, ())
    return stacks.gathered(traceback) + above


def _stack(place: Any) -> Stack:
    return stacks.resolve(raw(place))
