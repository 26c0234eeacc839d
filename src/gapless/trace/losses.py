"""Find events that a file refers to but does not contain: missing numbers, arrows that lead nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gapless.trace.build import DUPLICATED, TimelineBuilder
from gapless.trace.timeline import HostKind, Ints, Timeline, distinct, is_among

_MIN_OPERATORS = 50
"""With fewer operators, external ids say nothing about missing events."""
_COMPLETE_SHARE = 0.99
"""Above this share of numbered events a trace counts as complete: the profiler drops a few Python frames."""
_ROUNDING_NS = 2_000
"""Nanoseconds by which times may differ, as some files have whole microseconds."""
_STREAM_OVERLAP_NS = 20_000
"""Nanoseconds by which operations of one stream may overlap."""


class NumberedEvents(NamedTuple):
    """Count of CPU events that the profiler numbered.

    `recorded` of `total` are in the file, and `before` more came before them; others are missing between the
    times in `gaps`. `dense` says that the first event is in the file, and every one after it.
    """

    recorded: int = 0
    total: int = 0
    before: int = 0
    gaps: tuple[tuple[int, int], ...] = ()
    dense: bool = False


def count_numbered_events(builder: TimelineBuilder, timeline: Timeline, earliest: int) -> NumberedEvents:
    """Count the CPU events that the profiler numbered; `earliest` is the time of the first event.

    ``Ev Idx`` counts operators and annotations without gaps, in some versions with memory records among them,
    in others after them, and Python frames after all: by thread, then time. Files up to torch 1.11 have only
    the operators' ``External id``, of which some are skipped while nothing was recorded: the longest gap does
    not count.
    """
    alone, other_events = builder.numbers.all(), builder.other_numbers.all()
    if len(alone[0]):
        counts = [_count_dense([alone], earliest), _count_dense([alone, other_events], earliest)]
        best = max(counts, key=lambda count: count.recorded / count.total)
        # Excerpts have the other events at an unknown distance.
        return (
            best
            if best.before
            else _count_all(best, alone[0], other_events[0], builder.frame_numbers.all()[0])
        )
    host = timeline.host
    rows = np.isin(host.kind, (HostKind.OPERATOR, HostKind.ANNOTATION)) & (host.external > 0)
    ids = distinct(host.external[rows])
    if len(ids) < _MIN_OPERATORS:
        return NumberedEvents()
    gaps = np.diff(ids) - 1
    return NumberedEvents(len(ids), len(ids) + int(gaps.sum() - gaps.max()))


def _count_dense(columns: Sequence[tuple[Ints, Ints]], earliest: int) -> NumberedEvents:
    """Count events whose numbers should have no gaps."""
    numbers, first = np.unique(np.concatenate([ids for ids, _ in columns]), return_index=True)
    start = np.concatenate([times for _, times in columns])[first] - earliest
    # They begin at 0, except in excerpts of larger profiles.
    begin = int(numbers[0]) if numbers[0] > len(numbers) else 0
    gone = np.flatnonzero((np.diff(numbers) > 1) & (np.diff(start) > 0))
    gaps = tuple(zip(start[gone].tolist(), start[gone + 1].tolist(), strict=True))
    of = int(numbers[-1]) - begin + 1
    return NumberedEvents(len(numbers), of, begin, gaps, dense=not begin and len(numbers) == of)


def _count_all(counted: NumberedEvents, *numbers_of_kinds: Ints) -> NumberedEvents:
    """Return `counted` over all numbered events, Python frames included, unless they are complete."""
    numbers = distinct(np.concatenate(numbers_of_kinds))
    of = int(numbers[-1]) + 1
    if len(numbers) > _COMPLETE_SHARE * of:
        return counted
    return counted._replace(recorded=len(numbers), total=of)


class ArrowEnds(NamedTuple):
    """Arrows without an end: how many lead from a call to device work that is missing, and when the work
    begins whose call is missing too."""

    without_work: int = 0
    uncaused: tuple[int, ...] = ()


def find_lost_arrows(builder: TimelineBuilder, timeline: Timeline, earliest: int) -> ArrowEnds:
    """Find arrows to device work that is not in the file; `earliest` is the time of the first event."""
    ends, times = builder.arrows.ending_on_devices({(thread.pid, thread.tid) for thread in timeline.threads})
    if not len(ends) or builder.dropped[DUPLICATED]:  # repeated arrows cannot be recognized
        return ArrowEnds()
    wanted, first, counts = np.unique(ends, return_index=True, return_counts=True)
    for recorded in (timeline.work.correlation, timeline.syncs.correlation):
        held_ids, held = np.unique(recorded, return_counts=True)
        at = np.minimum(np.searchsorted(held_ids, wanted), max(len(held_ids) - 1, 0))
        counts = counts - np.where(held_ids[at] == wanted, held[at], 0) if len(held_ids) else counts
    every = (timeline.host.correlation, timeline.work.correlation, timeline.syncs.correlation)
    alone = ~is_among(wanted, np.concatenate(every))
    uncaused = np.sort(times[first[alone]] - earliest)
    return ArrowEnds(int(np.maximum(counts, 0).sum()), tuple(uncaused.tolist()))


def find_bare_ranges(
    builder: TimelineBuilder, timeline: Timeline, earliest: int
) -> tuple[tuple[tuple[int, int], ...], int]:
    """Return the parts of device annotations without work at their ends, and how many operations run past
    them.

    The profiler writes these last, one for each stream, from the start of the first operation launched in the
    annotation to the end of the last.
    """
    work = timeline.work
    bare: list[tuple[int, int]] = []
    beyond = 0
    streams = {place[:2] for place in builder.ranges}
    rows = {place: np.flatnonzero((work.device == place[0]) & (work.stream == place[1])) for place in streams}
    for device, stream, begin, end in builder.ranges:
        own, low, high = rows[device, stream], begin - earliest, end - earliest
        start, ends = work.start[own], np.maximum.accumulate(work.end[own])  # by start
        at = int(np.searchsorted(start, low - _ROUNDING_NS))
        first = int(start[at]) if at < len(start) else high
        before = int(np.searchsorted(start, high)) - 1
        last = int(ends[before]) if before >= 0 else low
        if first > low + _ROUNDING_NS:
            bare.append((low, min(first, high)))
        if last < high - _ROUNDING_NS:
            bare.append((max(last, low), high))
        beyond += last > high + _STREAM_OVERLAP_NS
    return tuple(bare), beyond
