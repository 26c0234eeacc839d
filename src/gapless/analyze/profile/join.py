"""Join two profiles of one script: times from the one without Python stacks, lines from the other.

Recording Python stacks multiplies the host's time, so that a profile with them shows idleness that is not
there without. But the script does the same either way: the operators of a step, in order, tell which moment
of one profile corresponds to which of the other, and the Python frames are placed around them.
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

MIN_COVERAGE = 0.5
"""If a smaller share of the operators matches, the profiles are of different work."""


class JoinedTimeline(NamedTuple):
    """`timeline` with the other's frames; `coverage` is the share of its operators that were matched."""

    timeline: Timeline
    coverage: float


class _StepSpan(NamedTuple):
    """A step as the profiler marks it, in nanoseconds."""

    start: int
    end: int


class _StepOperators(NamedTuple):
    """The operators of one thread in a step: host rows in order, and a number for the name of each."""

    rows: Ints
    names: Ints


class _TimeMap(NamedTuple):
    """Pairs (other profile, this profile) of times at which spans start, end, and both."""

    starts: tuple[Ints, Ints]
    ends: tuple[Ints, Ints]
    all: tuple[Ints, Ints]


def join_profiles(times: Timeline, stacks: Timeline) -> JoinedTimeline:
    """Insert the Python frames of `stacks` into `times`, at the corresponding times.

    Each step of `times` takes the frames of a step of `stacks` in which the thread called the same operators
    in the same order; if none is equal, the most similar one, matched at its beginning and end. Between
    operators frames are placed in proportion.
    """
    steps, other_steps = _marked_steps(times), _marked_steps(stacks)
    names = _number_names(times, stacks)
    moved: list[Host] = []
    matched = total = 0
    for thread, other in _common_threads(times, stacks):
        mine = [_operators_of_step(times, thread, step, names[0]) for step in steps]
        theirs = [_operators_of_step(stacks, other, step, names[1]) for step in other_steps]
        frames = _frame_rows(stacks, other)
        for at, own in enumerate(mine):
            total += len(own.rows)
            partner, pairs = _most_similar_step(own, theirs, at)
            if partner < 0:
                continue
            matched += len(pairs[0])
            rows = own.rows[pairs[0]], theirs[partner].rows[pairs[1]]
            scale = _time_map(times, stacks, rows, steps[at], other_steps[partner])
            moved.append(_move_frames(stacks, frames, other_steps[partner], scale, thread))
    coverage = matched / total if total else 0.0
    return JoinedTimeline(_with_frames(times, stacks, moved), coverage)


# What is compared ------------------------------------------------------------------------------------------


def _marked_steps(timeline: Timeline) -> list[_StepSpan]:
    marked = timeline.names_where(lambda name: name.startswith("ProfilerStep#"))
    host = timeline.host
    rows = np.flatnonzero(marked[host.name] & (host.kind == HostKind.ANNOTATION)) if len(marked) else ()
    steps = [_StepSpan(int(host.start[row]), int(host.end[row])) for row in rows]
    return sorted(steps)


def _number_names(first_timeline: Timeline, other: Timeline) -> tuple[Ints, Ints]:
    """Number the names of both profiles so that equal names have equal numbers."""
    numbers: dict[str, int] = {}
    first, second = (
        np.array([numbers.setdefault(name, len(numbers)) for name in timeline.names], np.int64)
        for timeline in (first_timeline, other)
    )
    return first, second


def _common_threads(times: Timeline, stacks: Timeline) -> list[tuple[int, int]]:
    """Return the threads of both that run Python: their numbers in `times` and in `stacks`."""
    python = distinct(stacks.host.thread[stacks.host.kind == HostKind.FRAME])
    numbers = {(thread.pid, thread.tid): number for number, thread in enumerate(times.threads)}
    keys = [(number, (stacks.threads[number].pid, stacks.threads[number].tid)) for number in python.tolist()]
    return [(numbers[key], number) for number, key in keys if key in numbers]


def _operators_of_step(timeline: Timeline, thread: int, step: _StepSpan, names: Ints) -> _StepOperators:
    """Return a step's operators; driver calls are not compared, as memory is allocated only now and then."""
    host = timeline.host
    begin, end = timeline.thread_rows[thread]
    low, high = begin + np.searchsorted(host.start[begin:end], (step.start, step.end))
    rows = np.arange(low, high)
    rows = rows[host.kind[low:high] == HostKind.OPERATOR]
    return _StepOperators(rows, names[host.name[rows]])


def _frame_rows(stacks: Timeline, thread: int) -> Ints:
    begin, end = stacks.thread_rows[thread]
    return begin + np.flatnonzero(stacks.host.kind[begin:end] == HostKind.FRAME)


def _most_similar_step(
    own: _StepOperators, theirs: Sequence[_StepOperators], at: int
) -> tuple[int, tuple[Ints, Ints]]:
    """Return the most similar step, on a tie the nearest, and the positions in both that agree."""
    best, pairs = -1, (np.empty(0, np.int64), np.empty(0, np.int64))
    for number in sorted(range(len(theirs)), key=lambda number: abs(number - at)):
        other = theirs[number]
        alike = _matching_positions(own.names, other.names)
        if best < 0 or len(alike[0]) > len(pairs[0]):
            best, pairs = number, alike
        if len(pairs[0]) == len(own.names) == len(other.names):
            break
    return best, pairs


def _matching_positions(first_names: Ints, other: Ints) -> tuple[Ints, Ints]:
    """Return the positions in both up to their first difference, and from their last one on."""
    shorter = min(len(first_names), len(other))
    differs = np.flatnonzero(first_names[:shorter] != other[:shorter])
    head = int(differs[0]) if len(differs) else shorter
    rest = shorter - head
    differs = np.flatnonzero(first_names[len(first_names) - rest :][::-1] != other[len(other) - rest :][::-1])
    tail = int(differs[0]) if len(differs) else rest
    first = np.arange(head)
    return (
        np.append(first, np.arange(len(first_names) - tail, len(first_names))),
        np.append(first, np.arange(len(other) - tail, len(other))),
    )


# How frames are moved --------------------------------------------------------------------------------------


def _time_map(
    times: Timeline, stacks: Timeline, rows: tuple[Ints, Ints], mine: _StepSpan, theirs: _StepSpan
) -> _TimeMap:
    """Pair the times of the operators at `rows` and of the steps' bounds, which enclose them."""
    pairs = []
    for column in ("start", "end"):
        mine_times, their_times = getattr(times.host, column)[rows[0]], getattr(stacks.host, column)[rows[1]]
        mine_times = np.append(np.clip(mine_times, mine.start, mine.end), getattr(mine, column))
        pairs.append((np.append(their_times, getattr(theirs, column)), mine_times))
    both = [np.concatenate(pair) for pair in zip(*pairs, strict=True)]
    return _TimeMap(*(_sort_times(their_times, mine_times) for their_times, mine_times in (*pairs, both)))


def _sort_times(theirs: Ints, mine: Ints) -> tuple[Ints, Ints]:
    """Sort by time, without going back: files round their times."""
    rows = np.lexsort((mine, theirs))
    return theirs[rows], np.maximum.accumulate(mine[rows])


def _move_frames(stacks: Timeline, frames: Ints, step: _StepSpan, scale: _TimeMap, thread: int) -> Host:
    """Return the frames that run in the step, cut at its bounds, at the other profile's times."""
    host = stacks.host
    inside = frames[(host.end[frames] > step.start) & (host.start[frames] < step.end)]
    table = host.take(inside)
    start = _map_times(np.clip(table.start, step.start, step.end), scale.starts, scale.all, first=True)
    end = _map_times(np.clip(table.end, step.start, step.end), scale.ends, scale.all, first=False)
    return replace(
        table, start=start, end=np.maximum(start, end), thread=np.full(len(inside), thread, np.int32)
    )


def _map_times(moments: Ints, exact: tuple[Ints, Ints], scale: tuple[Ints, Ints], first: bool) -> Ints:
    """Map `moments` to the other profile.

    A moment at which an operator starts (or ends) maps to that operator's: `exact` are the starts (or ends)
    of operators, of several the `first` or the last. All others are interpolated on the `scale`.
    """
    theirs, mine = scale
    between = np.interp(moments, theirs, mine).astype(np.int64) if len(theirs) else moments.copy()
    at = np.searchsorted(exact[0], moments, side="left" if first else "right") - (0 if first else 1)
    at = np.clip(at, 0, max(len(exact[0]) - 1, 0))
    if not len(exact[0]):
        return between
    is_exact: Bools = exact[0][at] == moments
    return np.where(is_exact, exact[1][at], between)


def _with_frames(times: Timeline, stacks: Timeline, moved: Sequence[Host]) -> Timeline:
    if not moved:
        return times
    frames = concatenate(moved)
    numbers_by_name = {name: number for number, name in enumerate(times.names)}
    numbers = np.full(len(stacks.names), -1, np.int32)
    for number in distinct(frames.name).tolist():
        numbers[number] = numbers_by_name.setdefault(stacks.names[number], len(numbers_by_name))
    nowhere: NDArray[np.int32] = np.full(len(frames), -1, np.int32)
    frames = replace(frames, name=numbers[frames.name], stack=nowhere)
    host = concatenate([times.host, frames])
    rows = host_order(host)
    places = np.empty(len(rows), np.int64)
    places[rows] = np.arange(len(rows))
    links = replace(times.links, forward=places[times.links.forward], backward=places[times.links.backward])
    return replace(times, host=host.take(rows), names=tuple(numbers_by_name), links=links)


# The profile of both ---------------------------------------------------------------------------------------


def profile_passes(
    times: str,
    stacks: str,
    progress: Callable[[int], None] | None = None,
    priced: bool = False,
    requested: Sequence[str] = (),
    max_boxes: int = 0,
) -> Profile:
    """Profile two files of one script, "" for a missing one; the times are taken from `times`.

    Raises:
        UnreadableInput: a file cannot be read, is no trace or has no work of a device.
    """
    if not times or not stacks:
        alone = read(times or stacks, progress)
        return build_profile(_with_note(alone, _ALONE[bool(times)]), priced, requested, max_boxes)
    light, heavy = read(times, progress), read(stacks)
    joined = join_profiles(light, heavy)
    longer = _slowdown_text(light, heavy)
    if joined.coverage < MIN_COVERAGE:
        return build_profile(_with_note(heavy, _UNLIKE.format(longer=longer)), priced, requested, max_boxes)
    note = _JOINED.format(coverage=_percent(joined.coverage), longer=longer)
    return build_profile(_with_note(joined.timeline, note), priced, requested, max_boxes)


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


def _with_note(timeline: Timeline, note: str) -> Timeline:
    """Add a note to a recording of `gapless profile`; earlier versions did not write whose it is."""
    return replace(
        timeline,
        notes=(*timeline.notes, note),
        facts=replace(timeline.facts, by_gapless=True),
    )


def _percent(share: float) -> str:
    return "all" if share == 1 else f"{min(100 * share, 99.9):.1f} %"


def _slowdown_text(light: Timeline, heavy: Timeline) -> str:
    """Say how many times as long a step took on the host with stacks; "" if hardly longer."""
    lengths = [
        [later.start - step.start for step, later in pairwise(_marked_steps(timeline))]
        for timeline in (light, heavy)
    ]
    if not all(lengths):
        return ""
    without, with_them = (float(np.median(step_lengths)) for step_lengths in lengths)
    if with_them < 1.02 * without:
        return ""
    return f" (which took {with_them / max(without, 1):.2g} times as long)"
