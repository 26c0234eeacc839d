"""What a file itself says of events that are not in it: numbers left out, arrows that lead nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gapless.trace.build import TWICE, Builder
from gapless.trace.timeline import HostKind, Ints, Timeline, among, distinct

_FEW = 50
"""Fewer operators without numbers of their own do not tell."""
_SOME = 0.99
"""Where more than this part of all that is numbered is there nothing is missing: the profiler drops a few
Python frames itself."""
_ROUNDED = 2_000
"""Nanoseconds by which times may differ that some files write in whole microseconds."""
_ACROSS = 20_000
"""Nanoseconds by which operations of one stream may overlap."""


class Numbered(NamedTuple):
    """How many events of the CPU are there, of how many, after how many; between which times some are not;
    and whether the profiler's first one is there and none after it was left out."""

    seen: int = 0
    of: int = 0
    before: int = 0
    gaps: tuple[tuple[int, int], ...] = ()
    dense: bool = False


def numbered(builder: Builder, timeline: Timeline, earliest: int) -> Numbered:
    """What the profiler's numbers for events of the CPU say; `earliest` is the first event's time.

    ``Ev Idx`` counts operators and annotations without gaps, in some versions with records of memory among
    them, in the others behind them, and Python frames behind all: by thread, then time. Files up to torch
    1.11 have only the operators' ``External id``, of which some are skipped where nothing was recorded for a
    while: the longest gap does not count.
    """
    alone, others = builder.numbers.all(), builder.other_numbers.all()
    if len(alone[0]):
        counts = [_dense([alone], earliest), _dense([alone, others], earliest)]
        best = max(counts, key=lambda one: one.seen / one.of)
        # Excerpts have the others after an unknown distance.
        return best if best.before else _together(best, alone[0], others[0], builder.frame_numbers.all()[0])
    host = timeline.host
    rows = np.isin(host.kind, (HostKind.OPERATOR, HostKind.ANNOTATION)) & (host.external > 0)
    found = distinct(host.external[rows])
    if len(found) < _FEW:
        return Numbered()
    gaps = np.diff(found) - 1
    return Numbered(len(found), len(found) + int(gaps.sum() - gaps.max()))


def _dense(some: Sequence[tuple[Ints, Ints]], earliest: int) -> Numbered:
    """What numbers say that should be all there are."""
    numbers, first = np.unique(np.concatenate([one for one, _ in some]), return_index=True)
    start = np.concatenate([one for _, one in some])[first] - earliest
    # They begin at 0, except in parts that were taken out of larger profiles.
    begin = int(numbers[0]) if numbers[0] > len(numbers) else 0
    gone = np.flatnonzero((np.diff(numbers) > 1) & (np.diff(start) > 0))
    gaps = tuple(zip(start[gone].tolist(), start[gone + 1].tolist(), strict=True))
    of = int(numbers[-1]) - begin + 1
    return Numbered(len(numbers), of, begin, gaps, dense=not begin and len(numbers) == of)


def _together(found: Numbered, *some: Ints) -> Numbered:
    """With all that is numbered, which is one row."""
    numbers = distinct(np.concatenate(some))
    of = int(numbers[-1]) + 1
    if len(numbers) > _SOME * of:
        return found
    return found._replace(seen=len(numbers), of=of)


class Ends(NamedTuple):
    """How many arrows lead from calls to work of a device that is not there, and when those begin of which
    the call is not there either."""

    gone: int = 0
    uncaused: tuple[int, ...] = ()


def arrows(builder: Builder, timeline: Timeline, earliest: int) -> Ends:
    """What arrows that lead to a device say; `earliest` is the first event's time."""
    ends, times = builder.arrows.beside({(one.pid, one.tid) for one in timeline.threads})
    if not len(ends) or builder.dropped[TWICE]:  # of arrows there is no telling which are there twice
        return Ends()
    wanted, first, counts = np.unique(ends, return_index=True, return_counts=True)
    for there in (timeline.work.correlation, timeline.syncs.correlation):
        known, held = np.unique(there, return_counts=True)
        at = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
        counts = counts - np.where(known[at] == wanted, held[at], 0) if len(known) else counts
    every = (timeline.host.correlation, timeline.work.correlation, timeline.syncs.correlation)
    alone = ~among(wanted, np.concatenate(every))
    uncaused = np.sort(times[first[alone]] - earliest)
    return Ends(int(np.maximum(counts, 0).sum()), tuple(uncaused.tolist()))


def ranges(builder: Builder, timeline: Timeline, earliest: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """The spans at the ends of annotations on a device that have no work, and how much runs beyond them.

    Those the profiler writes last, each from the beginning of the first to the end of the last operation
    that was launched in the annotation, one for each stream.
    """
    work = timeline.work
    bare: list[tuple[int, int]] = []
    beyond = 0
    streams = {one[:2] for one in builder.ranges}
    rows = {one: np.flatnonzero((work.device == one[0]) & (work.stream == one[1])) for one in streams}
    for device, stream, begin, end in builder.ranges:
        own, low, high = rows[device, stream], begin - earliest, end - earliest
        start, ends = work.start[own], np.maximum.accumulate(work.end[own])  # by start
        at = int(np.searchsorted(start, low - _ROUNDED))
        first = int(start[at]) if at < len(start) else high
        before = int(np.searchsorted(start, high)) - 1
        last = int(ends[before]) if before >= 0 else low
        if first > low + _ROUNDED:
            bare.append((low, min(first, high)))
        if last < high - _ROUNDED:
            bare.append((max(last, low), high))
        beyond += last > high + _ACROSS
    return tuple(bare), beyond
