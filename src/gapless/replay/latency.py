"""Fit latencies to the profile: from a launch to its work, between kernels, from work to the host.

Every fit is a median over occasions that show the latency alone: a launch on an idle stream, a kernel queued
behind another, a wait that still waited when its work ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gapless.model.copies import STAGED
from gapless.replay.targets import LONG_CALL_NS
from gapless.replay.waits import LaunchLinks, WaitKind, WaitTable
from gapless.trace.timeline import Bools, Ints, Timeline

MIN_OCCASIONS = 5
"""Occasions needed for a fit."""
DEFAULT_LAUNCH_NS = 6_000
"""From the beginning of a launch to its work, if the profile has too few occasions."""
DEFAULT_RETURN_NS = 5_000
"""From the end of the work to the end of the wait for it, likewise."""
DEFAULT_UNBLOCKED_NS = 4_000
"""A waiting call with nothing to wait for, likewise."""
DEFAULT_UNBLOCKED_DEVICE_NS = 20_000
"""Such a call for the whole device."""


@dataclass(frozen=True)
class LaunchTimes:
    """When the host launched each device operation, and the latency until it may begin.

    `time` is the beginning or the end of the call, whichever predicts the begin better for calls of that name
    and kind; `gap` is the time after the operation before it. Operations without a call have `linked` False.
    """

    linked: Bools
    time: Ints
    delay: Ints
    gap: Ints


def group_medians(groups: Ints, values: Ints, fallback: Ints | int, least: int = MIN_OCCASIONS) -> Ints:
    """Return the median of each group; `fallback` (per group) for groups with fewer than `least` values."""
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
    """Return for each operation (ordered by start) the previous one on its stream; -1 for the first."""
    order = np.argsort(stream, kind="stable")
    before = np.full(len(stream), -1, np.int64)
    if len(order) > 1:
        same = stream[order[1:]] == stream[order[:-1]]
        before[order[1:]] = np.where(same, order[:-1], -1)
    return before


def fit_launches(timeline: Timeline, links: LaunchLinks, before: Ints, blocking: Bools) -> LaunchTimes:
    """Fit the latencies of launches; `blocking` marks work whose call blocks, `before` is as in
    `DeviceOrder`.
    """
    host, work = timeline.host, timeline.work
    linked = links.call >= 0
    call = np.maximum(links.call, 0)
    begin, end = host.start[call], host.end[call]
    group = _launch_groups(timeline, links, call)
    previous_end = np.where(before >= 0, work.end[np.maximum(before, 0)], -1)
    idle = linked & (previous_end < begin)
    if len(links.stream_id) > 1:  # work delayed by another stream says nothing about launches
        rows = np.flatnonzero(idle)
        other = latest_elsewhere(timeline, links, rows)
        idle[rows] = (other < 0) | (work.end[other] <= begin[rows])
    from_start, from_end = work.start - begin, work.start - end
    count = int(group.max(initial=0)) + 1
    few = np.bincount(group[idle], minlength=count) < MIN_OCCASIONS
    pooled = (
        int(np.median(from_end[idle & ~blocking])) if (idle & ~blocking).sum() >= MIN_OCCASIONS else 1_000
    )
    start_fit = group_medians(group[idle], from_start[idle], np.full(count, DEFAULT_LAUNCH_NS, np.int64))
    end_fit = group_medians(group[idle], from_end[idle], np.full(count, pooled, np.int64))
    spread = [
        group_medians(group[idle], np.abs(value[idle] - fit[group[idle]]), np.zeros(count, np.int64))
        for value, fit in ((from_start, start_fit), (from_end, end_fit))
    ]
    # calls too rare for a fit (a graph, a first launch): work begins when the call ends
    by_end = ((spread[1] < spread[0]) | few)[group] & ~blocking
    time = np.where(by_end, end, begin)
    delay = np.where(by_end, end_fit[group], start_fit[group])
    return LaunchTimes(linked, np.where(linked, time, work.start), np.where(linked, delay, 0),
                    _queue_gaps(timeline, before, time + delay, linked))  # fmt: skip


def latest_elsewhere(timeline: Timeline, links: LaunchLinks, rows: Ints) -> Ints:
    """Return for each operation the one on another stream of its device that ended last before it began."""
    work = timeline.work
    best = np.full(len(rows), -1, np.int64)
    when = np.full(len(rows), -1, np.int64)
    for stream in range(len(links.stream_id)):
        mine = np.flatnonzero(links.stream == stream)
        mine = mine[np.argsort(work.end[mine], kind="stable")]
        at = np.searchsorted(work.end[mine], work.start[rows] + 500, side="right") - 1
        source = mine[np.maximum(at, 0)]
        other = (links.stream[rows] != stream) & (work.device[rows] == links.stream_device[stream])
        better = (at >= 0) & other & (work.end[source] > when)
        best[better], when[better] = source[better], work.end[source[better]]
    return best


def _launch_groups(timeline: Timeline, links: LaunchLinks, call: Ints) -> Ints:
    """Group launches that behave alike: same call, kind of work and of memory; copies also by size."""
    work, kinds = timeline.work, links.copies
    copy = kinds.to_host * 1 + kinds.to_device * 2 + kinds.pageable * 4 + kinds.pinned * 8
    large = (copy > 0) & (work.bytes > STAGED)
    key = ((timeline.host.name[call].astype(np.int64) * 4 + work.kind) * 16 + copy) * 2 + large
    groups: Ints = np.unique(key, return_inverse=True)[1].reshape(-1)
    return groups


def _queue_gaps(timeline: Timeline, before: Ints, due: Ints, linked: Bools) -> Ints:
    """Return the time between each operation and the one queued before it, fitted by the kinds of both."""
    work = timeline.work
    previous = np.maximum(before, 0)
    between = work.start - work.end[previous]
    group = work.kind[previous].astype(np.int64) * 4 + work.kind
    queued = linked & (before >= 0) & (due < work.end[previous] - 2_000) & (between < 50_000)
    common = int(np.median(between[queued])) if queued.sum() >= MIN_OCCASIONS else 1_000
    fitted: Ints = group_medians(group[queued], between[queued], np.full(16, common, np.int64))
    gap: Ints = fitted[group]
    return gap


@dataclass(frozen=True)
class WaitReturns:
    """The time from the end of its work to the end of the call, and the call's own time, for each wait.

    The first two are of the synchronize (or of the only call), the others of a copy's call that blocks by
    itself before its synchronize.
    """

    after: Ints
    own: Ints
    copy_after: Ints
    copy_own: Ints


def fit_returns(
    timeline: Timeline, links: LaunchLinks, table: WaitTable, besides: Mapping[int, int]
) -> WaitReturns:
    """Fit how waits end. `besides` maps host rows to the time their calls spend after waiting."""
    host, work = timeline.host, timeline.work
    last = np.where(table.sync >= 0, table.sync, table.host)
    group = _wait_groups(timeline, links, table)
    device = table.kind == WaitKind.DEVICE
    usual = np.where(device, DEFAULT_UNBLOCKED_DEVICE_NS, DEFAULT_UNBLOCKED_NS)
    more = np.array([besides.get(row, 0) for row in last.tolist()], np.int64)
    after, own = _fit_waits(host.start[last], host.end[last] - more, work.end, table.work, group, usual)
    first = np.where((table.sync >= 0) & table.blocks, table.copy, -1)
    copy_after, copy_own = _fit_waits(
        host.start[table.host], host.end[table.host], work.end, first, group, usual
    )
    return WaitReturns(after + more, own + more, copy_after, copy_own)


def _wait_groups(timeline: Timeline, links: LaunchLinks, table: WaitTable) -> Ints:
    """Group waits that behave alike: same call and kind; copies also by memory, direction and size."""
    kinds, copy = links.copies, np.maximum(table.copy, 0)
    is_copy = table.copy >= 0
    memory = np.where(is_copy, kinds.to_host[copy] + 2 * kinds.pageable[copy] + 4 * kinds.pinned[copy], 0)
    size = np.where(is_copy, np.log2(np.maximum(timeline.work.bytes[copy], 1)).astype(np.int64), 0)
    size = np.where(size <= 12, 0, size)  # small ones are all latency
    name = timeline.host.name[table.host].astype(np.int64)
    key = ((name * 8 + table.kind) * 8 + memory) * 64 + size
    key = key * 4 + table.blocks + 2 * (table.sync >= 0)
    groups: Ints = np.unique(key, return_inverse=True)[1].reshape(-1)
    return groups


def _fit_waits(
    start: Ints, end: Ints, ends: Ints, target: Ints, group: Ints, usual: Ints
) -> tuple[Ints, Ints]:
    has_target = target >= 0
    done = np.where(has_target, ends[np.maximum(target, 0)], start)
    waited = has_target & (done > start + 2_000)
    free = (
        has_target & (done <= start) & (end - start <= LONG_CALL_NS)
    )  # longer calls waited for something not shown
    count = int(group.max(initial=0)) + 1
    pooled = int(np.median((end - done)[waited])) if waited.sum() >= MIN_OCCASIONS else DEFAULT_RETURN_NS
    # If too few of a group waited: like other groups, but not later than its own ends show.
    likely = np.full(count, pooled, np.int64)
    np.minimum.at(likely, group[has_target], np.maximum(end - done, 0)[has_target])
    after = group_medians(group[waited], (end - done)[waited], likely, 3)
    unknown = np.zeros(count, np.int64)
    unknown[group] = usual
    own = group_medians(group[free], (end - start)[free], unknown, 3)
    return after[group], own[group]
