"""Two profiles of one script, one without Python stacks and one with: times of one, lines of the other.

Recording Python stacks costs the host a multiple of its time, so that a profile with them shows idleness that
is not there without. But the script does the same either way: the operators of a step, in order, tell which
moment of one profile is which of the other, and the Python frames are laid around them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gapless.analyze.profile.building import build_profile
from gapless.model.profile import Profile
from gapless.trace.assemble import host_order
from gapless.trace.read import read
from gapless.trace.timeline import Bools, Host, HostKind, Ints, Timeline, concatenate, distinct

ENOUGH = 0.5
"""Where fewer of the operators found their like, the profiles are of different work."""


class Joined(NamedTuple):
    """`timeline` with the other's frames, which `coverage` of its operators (0 to 1) found their place in."""

    timeline: Timeline
    coverage: float


class _Step(NamedTuple):
    """A step as the profiler marks it: nanoseconds."""

    start: int
    end: int


class _Rows(NamedTuple):
    """What a thread did in a step: rows of the host in order, and a number for the name of each."""

    rows: Ints
    names: Ints


class _Scale(NamedTuple):
    """Moments of one profile and the same ones of the other: where spans start, end, and both."""

    starts: tuple[Ints, Ints]
    ends: tuple[Ints, Ints]
    all: tuple[Ints, Ints]


def join(times: Timeline, stacks: Timeline) -> Joined:
    """`times` with the Python frames of `stacks`, moved to where they were in it.

    Each step of `times` takes the frames of a step of `stacks` in which the thread called the same operators
    in the same order; where none is quite the same, those between its beginning and its end that are. Frames
    are placed between the operators around them in proportion.
    """
    here, there = _steps(times), _steps(stacks)
    names = _common_names(times, stacks)
    moved: list[Host] = []
    found = asked = 0
    for thread, other in _threads(times, stacks):
        mine = [_rows(times, thread, step, names[0]) for step in here]
        theirs = [_rows(stacks, other, step, names[1]) for step in there]
        frames = _frames(stacks, other)
        for at, own in enumerate(mine):
            asked += len(own.rows)
            partner, pairs = _partner(own, theirs, at)
            if partner < 0:
                continue
            found += len(pairs[0])
            rows = own.rows[pairs[0]], theirs[partner].rows[pairs[1]]
            scale = _scale(times, stacks, rows, here[at], there[partner])
            moved.append(_moved(stacks, frames, there[partner], scale, thread))
    coverage = found / asked if asked else 0.0
    return Joined(_with_frames(times, stacks, moved), coverage)


# What is compared ------------------------------------------------------------------------------------------


def _steps(timeline: Timeline) -> list[_Step]:
    marked = timeline.names_where(lambda name: name.startswith("ProfilerStep#"))
    host = timeline.host
    rows = np.flatnonzero(marked[host.name] & (host.kind == HostKind.ANNOTATION)) if len(marked) else ()
    steps = [_Step(int(host.start[row]), int(host.end[row])) for row in rows]
    return sorted(steps)


def _common_names(one: Timeline, other: Timeline) -> tuple[Ints, Ints]:
    """For the names of both a number that is the same where the names are."""
    numbers: dict[str, int] = {}
    first, second = (
        np.array([numbers.setdefault(name, len(numbers)) for name in timeline.names], np.int64)
        for timeline in (one, other)
    )
    return first, second


def _threads(times: Timeline, stacks: Timeline) -> list[tuple[int, int]]:
    """Threads of both that run Python: their numbers here and there."""
    python = distinct(stacks.host.thread[stacks.host.kind == HostKind.FRAME])
    known = {(thread.pid, thread.tid): number for number, thread in enumerate(times.threads)}
    keys = [(number, (stacks.threads[number].pid, stacks.threads[number].tid)) for number in python.tolist()]
    return [(known[key], number) for number, key in keys if key in known]


def _rows(timeline: Timeline, thread: int, step: _Step, names: Ints) -> _Rows:
    """A step's operators. Calls of the driver are not compared: memory is asked for only now and then."""
    host = timeline.host
    begin, end = timeline.thread_rows[thread]
    low, high = begin + np.searchsorted(host.start[begin:end], (step.start, step.end))
    rows = np.arange(low, high)
    rows = rows[host.kind[low:high] == HostKind.OPERATOR]
    return _Rows(rows, names[host.name[rows]])


def _frames(stacks: Timeline, thread: int) -> Ints:
    begin, end = stacks.thread_rows[thread]
    return begin + np.flatnonzero(stacks.host.kind[begin:end] == HostKind.FRAME)


def _partner(own: _Rows, theirs: Sequence[_Rows], at: int) -> tuple[int, tuple[Ints, Ints]]:
    """The step that is most like this one, the nearest of equals; and the positions in both that agree."""
    best, pairs = -1, (np.empty(0, np.int64), np.empty(0, np.int64))
    for number in sorted(range(len(theirs)), key=lambda number: abs(number - at)):
        other = theirs[number]
        alike = _alike(own.names, other.names)
        if best < 0 or len(alike[0]) > len(pairs[0]):
            best, pairs = number, alike
        if len(pairs[0]) == len(own.names) == len(other.names):
            break
    return best, pairs


def _alike(one: Ints, other: Ints) -> tuple[Ints, Ints]:
    """Positions in both up to where they first differ, and from where they last do."""
    shorter = min(len(one), len(other))
    differs = np.flatnonzero(one[:shorter] != other[:shorter])
    head = int(differs[0]) if len(differs) else shorter
    rest = shorter - head
    differs = np.flatnonzero(one[len(one) - rest :][::-1] != other[len(other) - rest :][::-1])
    tail = int(differs[0]) if len(differs) else rest
    first = np.arange(head)
    return (
        np.append(first, np.arange(len(one) - tail, len(one))),
        np.append(first, np.arange(len(other) - tail, len(other))),
    )


# How frames are moved --------------------------------------------------------------------------------------


def _scale(times: Timeline, stacks: Timeline, rows: tuple[Ints, Ints], mine: _Step, theirs: _Step) -> _Scale:
    """Moments of both: of the operators at `rows`, and the bounds of the step, between which all is kept."""
    pairs = []
    for column in ("start", "end"):
        here, there = getattr(times.host, column)[rows[0]], getattr(stacks.host, column)[rows[1]]
        here = np.append(np.clip(here, mine.start, mine.end), getattr(mine, column))
        pairs.append((np.append(there, getattr(theirs, column)), here))
    both = [np.concatenate(one) for one in zip(*pairs, strict=True)]
    return _Scale(*(_ordered(there, here) for there, here in (*pairs, both)))


def _ordered(there: Ints, here: Ints) -> tuple[Ints, Ints]:
    """By time, and never going back: files round their times."""
    rows = np.lexsort((here, there))
    return there[rows], np.maximum.accumulate(here[rows])


def _moved(stacks: Timeline, frames: Ints, step: _Step, scale: _Scale, thread: int) -> Host:
    """The frames that run in the step, cut at its bounds, at the other profile's times."""
    host = stacks.host
    inside = frames[(host.end[frames] > step.start) & (host.start[frames] < step.end)]
    table = host.take(inside)
    start = _at(np.clip(table.start, step.start, step.end), scale.starts, scale.all, first=True)
    end = _at(np.clip(table.end, step.start, step.end), scale.ends, scale.all, first=False)
    return replace(
        table, start=start, end=np.maximum(start, end), thread=np.full(len(inside), thread, np.int32)
    )


def _at(moments: Ints, exact: tuple[Ints, Ints], scale: tuple[Ints, Ints], first: bool) -> Ints:
    """Where the moments lie in the other profile.

    What starts (or ends) together with an operator does so there, too: `exact` are the starts (or ends) of
    operators, of several the `first` or the last. Everything else lies between its neighbours on the `scale`.
    """
    there, here = scale
    between = np.interp(moments, there, here).astype(np.int64) if len(there) else moments.copy()
    at = np.searchsorted(exact[0], moments, side="left" if first else "right") - (0 if first else 1)
    at = np.clip(at, 0, max(len(exact[0]) - 1, 0))
    if not len(exact[0]):
        return between
    met: Bools = exact[0][at] == moments
    return np.where(met, exact[1][at], between)


def _with_frames(times: Timeline, stacks: Timeline, moved: Sequence[Host]) -> Timeline:
    if not moved:
        return times
    frames = concatenate(moved)
    known = {name: number for number, name in enumerate(times.names)}
    numbers = np.full(len(stacks.names), -1, np.int32)
    for number in distinct(frames.name).tolist():
        numbers[number] = known.setdefault(stacks.names[number], len(known))
    nowhere: NDArray[np.int32] = np.full(len(frames), -1, np.int32)
    frames = replace(frames, name=numbers[frames.name], stack=nowhere)
    host = concatenate([times.host, frames])
    rows = host_order(host)
    places = np.empty(len(rows), np.int64)
    places[rows] = np.arange(len(rows))
    links = replace(times.links, forward=places[times.links.forward], backward=places[times.links.backward])
    return replace(times, host=host.take(rows), names=tuple(known), links=links)


# The profile of both ---------------------------------------------------------------------------------------


def of_passes(
    times: str,
    stacks: str,
    progress: Callable[[int], None] | None = None,
    priced: bool = False,
    asked: Sequence[str] = (),
    drawn: int = 0,
) -> Profile:
    """The profile of two files of one script; "" for one that there is not. `times` is the one to believe.

    Raises:
        UnreadableInput: a file cannot be read, is no trace or has no work of a device.
    """
    if not times or not stacks:
        alone = read(times or stacks, progress)
        return build_profile(_noted(alone, _ALONE[bool(times)]), priced, asked, drawn)
    light, heavy = read(times, progress), read(stacks)
    joined = join(light, heavy)
    longer = _longer(light, heavy)
    if joined.coverage < ENOUGH:
        return build_profile(_noted(heavy, _UNLIKE.format(longer=longer)), priced, asked, drawn)
    note = _JOINED.format(coverage=_percent(joined.coverage), longer=longer)
    return build_profile(_noted(joined.timeline, note), priced, asked, drawn)


_ALONE = {
    True: "Lines are unknown: no steps were recorded with Python stacks",
    False: "All times include profiler overhead: only steps with Python stacks were recorded",
}
_JOINED = (
    "Times come from steps recorded without Python stacks, lines from steps recorded with them{longer}; "
    "{coverage} of the operators were found in both"
)
_UNLIKE = (
    "The steps with Python stacks did different work from those without, so their times could not be used: "
    "this profile is based on the steps with stacks alone{longer}"
)


def _noted(timeline: Timeline, note: str) -> Timeline:
    return replace(timeline, notes=(*timeline.notes, note))


def _percent(share: float) -> str:
    return "all" if share == 1 else f"{min(100 * share, 99.9):.1f} %"


def _longer(light: Timeline, heavy: Timeline) -> str:
    """What the stacks cost: how much longer the host took from step to step."""
    lengths = [[later.start - step.start for step, later in pairwise(_steps(one))] for one in (light, heavy)]
    if not all(lengths):
        return ""
    without, with_them = (float(np.median(one)) for one in lengths)
    if with_them < 1.02 * without:
        return ""
    return f" (which took {with_them / max(without, 1):.2g} times as long)"
