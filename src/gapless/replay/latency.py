"""Latencies, fitted to the profile itself: from a launch to its work, between kernels, from work to the host.

Every fit is a median over the occasions that show the latency alone: a launch on an idle stream, a kernel
queued behind another, a wait that was still waiting when its work ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gapless.model.copies import STAGED
from gapless.replay.targets import LONG
from gapless.replay.waits import Links, WaitKind, Waits
from gapless.trace.timeline import Bools, Ints, Timeline

LEAST = 5
"""Occasions a fit needs."""
LAUNCH = 6_000
"""Nanoseconds from the beginning of a launch to its work where the profile has too few to fit."""
RETURN = 5_000
"""Nanoseconds from the end of the work to the end of the wait for it, likewise."""
UNBLOCKED = 4_000
"""Nanoseconds of a call that waits when there is nothing to wait for, likewise."""
UNBLOCKED_DEVICE = 20_000
"""Nanoseconds of such a call for the whole device."""


@dataclass(frozen=True)
class Launches:
    """For each device operation when the host asked for it, `time`, and what passes until it may begin.

    `time` is the beginning or the end of the call, whichever predicts the begin better for calls of that
    name and kind. Operations without a call have `linked` False.
    """

    linked: Bools
    time: Ints
    delay: Ints
    gap: Ints


def medians(groups: Ints, values: Ints, fallback: Ints | int, least: int = LEAST) -> Ints:
    """For each group number its median; `fallback` (by group) for groups with fewer than `least` values."""
    count = int(groups.max(initial=-1)) + 1
    if isinstance(fallback, int):
        fallback = np.full(count, fallback, np.int64)
    count = max(count, len(fallback))
    result = np.resize(fallback, count).astype(np.int64)
    order = np.lexsort((values, groups))
    ordered = values[order]
    size = np.bincount(groups, minlength=count)
    first = np.cumsum(size) - size
    enough = np.flatnonzero(size >= least)
    low, high = first[enough] + (size[enough] - 1) // 2, first[enough] + size[enough] // 2
    result[enough] = (ordered[low] + ordered[high]) // 2
    return result


def previous_on_stream(stream: Ints) -> Ints:
    """For each operation (ordered by start) the one before it on its stream; -1: it is the first."""
    order = np.argsort(stream, kind="stable")
    before = np.full(len(stream), -1, np.int64)
    if len(order) > 1:
        same = stream[order[1:]] == stream[order[:-1]]
        before[order[1:]] = np.where(same, order[:-1], -1)
    return before


def fit_launches(timeline: Timeline, known: Links, before: Ints, blocking: Bools) -> Launches:
    """Fits the latencies of launches; `blocking` marks work whose call blocks, `before` is as in `Order`."""
    host, work = timeline.host, timeline.work
    linked = known.call >= 0
    call = np.maximum(known.call, 0)
    begin, end = host.start[call], host.end[call]
    group = _groups(timeline, known, call)
    previous_end = np.where(before >= 0, work.end[np.maximum(before, 0)], -1)
    idle = linked & (previous_end < begin)
    if len(known.stream_id) > 1:  # what another stream held up tells nothing of launches
        rows = np.flatnonzero(idle)
        other = latest_elsewhere(timeline, known, rows)
        idle[rows] = (other < 0) | (work.end[other] <= begin[rows])
    from_start, from_end = work.start - begin, work.start - end
    count = int(group.max(initial=0)) + 1
    few = np.bincount(group[idle], minlength=count) < LEAST
    pooled = int(np.median(from_end[idle & ~blocking])) if (idle & ~blocking).sum() >= LEAST else 1_000
    start_fit = medians(group[idle], from_start[idle], np.full(count, LAUNCH, np.int64))
    end_fit = medians(group[idle], from_end[idle], np.full(count, pooled, np.int64))
    spread = [
        medians(group[idle], np.abs(value[idle] - fit[group[idle]]), np.zeros(count, np.int64))
        for value, fit in ((from_start, start_fit), (from_end, end_fit))
    ]
    # What is too rare to be fitted (a graph, a first launch) begins when its call ends.
    by_end = ((spread[1] < spread[0]) | few)[group] & ~blocking
    time = np.where(by_end, end, begin)
    delay = np.where(by_end, end_fit[group], start_fit[group])
    return Launches(linked, np.where(linked, time, work.start), np.where(linked, delay, 0),
                    _gaps(timeline, before, time + delay, linked))  # fmt: skip


def latest_elsewhere(timeline: Timeline, known: Links, rows: Ints) -> Ints:
    """For each operation the one on another stream of its device that ended last before it began."""
    work = timeline.work
    best = np.full(len(rows), -1, np.int64)
    when = np.full(len(rows), -1, np.int64)
    for stream in range(len(known.stream_id)):
        mine = np.flatnonzero(known.stream == stream)
        mine = mine[np.argsort(work.end[mine], kind="stable")]
        at = np.searchsorted(work.end[mine], work.start[rows] + 500, side="right") - 1
        source = mine[np.maximum(at, 0)]
        other = (known.stream[rows] != stream) & (work.device[rows] == known.stream_device[stream])
        better = (at >= 0) & other & (work.end[source] > when)
        best[better], when[better] = source[better], work.end[source[better]]
    return best


def _groups(timeline: Timeline, known: Links, call: Ints) -> Ints:
    """Launches that behave alike: of one call, kind of work and kind of memory; copies by size."""
    work, kinds = timeline.work, known.copies
    copy = kinds.to_host * 1 + kinds.to_device * 2 + kinds.pageable * 4 + kinds.pinned * 8
    large = (copy > 0) & (work.bytes > STAGED)
    key = ((timeline.host.name[call].astype(np.int64) * 4 + work.kind) * 16 + copy) * 2 + large
    groups: Ints = np.unique(key, return_inverse=True)[1].reshape(-1)
    return groups


def _gaps(timeline: Timeline, before: Ints, due: Ints, linked: Bools) -> Ints:
    """What passes between an operation and the one queued behind it, by the kinds of both."""
    work = timeline.work
    previous = np.maximum(before, 0)
    between = work.start - work.end[previous]
    group = work.kind[previous].astype(np.int64) * 4 + work.kind
    queued = linked & (before >= 0) & (due < work.end[previous] - 2_000) & (between < 50_000)
    common = int(np.median(between[queued])) if queued.sum() >= LEAST else 1_000
    fitted: Ints = medians(group[queued], between[queued], np.full(16, common, np.int64))
    gap: Ints = fitted[group]
    return gap


@dataclass(frozen=True)
class Returns:
    """For each wait what passes from the end of its work to the end of its call, and the call's own length.

    The first row is of the synchronize (or of the only call), the second of a copy's call that blocks by
    itself before its synchronize does.
    """

    after: Ints
    own: Ints
    copy_after: Ints
    copy_own: Ints


def fit_returns(timeline: Timeline, known: Links, table: Waits, besides: Mapping[int, int]) -> Returns:
    """Fits how waits end. `besides` has for rows of the host what their calls do after they have waited."""
    host, work = timeline.host, timeline.work
    last = np.where(table.sync >= 0, table.sync, table.host)
    group = _wait_groups(timeline, known, table)
    device = table.kind == WaitKind.DEVICE
    usual = np.where(device, UNBLOCKED_DEVICE, UNBLOCKED)
    more = np.array([besides.get(row, 0) for row in last.tolist()], np.int64)
    after, own = _fit(host.start[last], host.end[last] - more, work.end, table.work, group, usual)
    first = np.where((table.sync >= 0) & table.blocks, table.copy, -1)
    copy_after, copy_own = _fit(host.start[table.host], host.end[table.host], work.end, first, group, usual)
    return Returns(after + more, own + more, copy_after, copy_own)


def _wait_groups(timeline: Timeline, known: Links, table: Waits) -> Ints:
    """Waits that behave alike: of one call and kind; copies by memory, direction and size."""
    kinds, copy = known.copies, np.maximum(table.copy, 0)
    is_copy = table.copy >= 0
    memory = np.where(is_copy, kinds.to_host[copy] + 2 * kinds.pageable[copy] + 4 * kinds.pinned[copy], 0)
    size = np.where(is_copy, np.log2(np.maximum(timeline.work.bytes[copy], 1)).astype(np.int64), 0)
    size = np.where(size <= 12, 0, size)  # small ones are all latency
    name = timeline.host.name[table.host].astype(np.int64)
    key = ((name * 8 + table.kind) * 8 + memory) * 64 + size
    key = key * 4 + table.blocks + 2 * (table.sync >= 0)
    groups: Ints = np.unique(key, return_inverse=True)[1].reshape(-1)
    return groups


def _fit(start: Ints, end: Ints, ends: Ints, target: Ints, group: Ints, usual: Ints) -> tuple[Ints, Ints]:
    known = target >= 0
    done = np.where(known, ends[np.maximum(target, 0)], start)
    waited = known & (done > start + 2_000)
    free = known & (done <= start) & (end - start <= LONG)  # longer: it waited for something unseen
    count = int(group.max(initial=0)) + 1
    pooled = int(np.median((end - done)[waited])) if waited.sum() >= LEAST else RETURN
    # Where too few of a kind waited: as after other kinds, but never behind the end of one of its own.
    likely = np.full(count, pooled, np.int64)
    np.minimum.at(likely, group[known], np.maximum(end - done, 0)[known])
    after = medians(group[waited], (end - done)[waited], likely, 3)
    unknown = np.zeros(count, np.int64)
    unknown[group] = usual
    own = medians(group[free], (end - start)[free], unknown, 3)
    return after[group], own[group]
