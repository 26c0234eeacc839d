"""Find what device operations wait for on the device: their stream, other streams, the head of their
graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gapless.replay.latency import LaunchTimes, latest_elsewhere
from gapless.replay.waits import LaunchLinks
from gapless.trace.timeline import Bools, HostKind, Ints, Timeline, distinct

UNEXPLAINED_NS = 3_000
"""Work that begins this much later than its stream and its launch explain has waited for something."""
NEAR_NS = 30_000
"""Work may have waited for other work that ended up to this long before, if no call says so."""
BEFORE_WINDOW_NS = 200_000
"""The first work of a stream that begins this long after its launch was behind earlier work."""


@dataclass(frozen=True)
class DeviceOrder:
    """What each device operation waits for besides its launch.

    `before` is the previous operation on its stream (-1: none) and `gap` the time between them. `head` is the
    head of its graph for operations that follow it on another stream (-1: none). `follows` marks work that
    depends on its stream only: the rest of a graph, and work without a call. `released` marks work that
    begins at a fixed time, because it waited for something before the recording. `alone` marks work that a
    change may drop.
    """

    before: Ints
    gap: Ints
    head: Ints
    follows: Bools
    released: Bools
    alone: Bools


@dataclass(frozen=True)
class Crossings:
    """Operations (`work`) that begin `delay` nanoseconds after the end of one on another stream
    (`source`).
    """

    work: Ints
    source: Ints
    delay: Ints


def order_work(timeline: Timeline, links: LaunchLinks, before: Ints, launches: LaunchTimes) -> DeviceOrder:
    """Determine what each operation waits for on its own stream and graph."""
    work = timeline.work
    previous = np.maximum(before, 0)
    head = _graph_heads(links)
    rest = head >= 0
    same_stream = rest & (before >= 0) & (links.call[previous] == links.call)
    elsewhere = np.where(rest & ~same_stream, head, -1)
    observed = np.where(before >= 0, work.start - work.end[previous], 0)
    follows = same_stream | (~launches.linked & (before >= 0))
    gap = np.where(follows, observed, launches.gap)
    late = work.start - (launches.time + launches.delay) > BEFORE_WINDOW_NS
    released = (before < 0) & (elsewhere < 0) & (~launches.linked | late)
    return DeviceOrder(before, gap, elsewhere, follows, released, np.zeros(len(work), bool))


def _graph_heads(links: LaunchLinks) -> Ints:
    """Return the first operation with the same call (the head of a graph) for each later one; -1 for
    others.
    """
    order = np.argsort(links.call, kind="stable")
    call = links.call[order]
    fresh = np.ones(len(order), bool)
    fresh[1:] = call[1:] != call[:-1]
    first = np.flatnonzero(fresh)[np.cumsum(fresh) - 1] if len(order) else order
    head = np.full(len(order), -1, np.int64)
    inner = ~fresh & (call >= 0)
    head[order[inner]] = order[first[inner]]
    return head


def find_crossings(
    timeline: Timeline, links: LaunchLinks, order: DeviceOrder, launches: LaunchTimes
) -> Crossings:
    """Find work that waits for another stream, from reported events, calls or its unexplained delay."""
    none = np.empty(0, np.int64)
    if len(links.stream_id) < 2:
        return Crossings(none, none, none)
    work = timeline.work
    plain = launches.linked & ~order.follows & (order.head < 0)
    delayed = plain & (work.start - _expected_starts(timeline, order, launches) > UNEXPLAINED_NS)
    told_work, told_source = _reported_crossings(timeline, links)
    ordered_by_call = np.setdiff1d(
        np.intersect1d(_after_wait_event(timeline, links), np.flatnonzero(plain)), told_work
    )
    guessed = np.setdiff1d(np.flatnonzero(delayed), np.concatenate([told_work, ordered_by_call]))
    rows = np.concatenate([ordered_by_call, guessed])
    source = latest_elsewhere(timeline, links, rows)
    near = (source >= 0) & (work.start[rows] - work.end[source] <= NEAR_NS)
    source = np.where(near | (np.arange(len(rows)) < len(ordered_by_call)), source, -1)
    crowded = np.flatnonzero(~near & delayed[rows])
    running = _running_elsewhere(timeline, links, rows[crowded])
    source[crowded] = np.where(running >= 0, running, source[crowded])
    rows, source = rows[source >= 0], source[source >= 0]
    rows, source = np.concatenate([told_work, rows]), np.concatenate([told_source, source])
    since = work.start[rows] - work.end[source]
    binding = delayed[rows] & (since <= NEAR_NS)
    keep = binding | ~order.released[rows]
    rows, source, since, binding = rows[keep], source[keep], since[keep], binding[keep]
    after = binding & (since >= 0)
    usual = int(np.median(since[after])) if after.any() else 1_500
    return Crossings(rows, source, np.where(binding, since, np.minimum(usual, since)))


def _expected_starts(timeline: Timeline, order: DeviceOrder, launches: LaunchTimes) -> Ints:
    """Return when each operation would begin if it waited for its launch and its stream only."""
    free = np.where(order.before >= 0, timeline.work.end[order.before] + order.gap, 0)
    due: Ints = np.maximum(np.where(launches.linked, launches.time + launches.delay, 0), free)
    return due


def _running_elsewhere(timeline: Timeline, links: LaunchLinks, rows: Ints) -> Ints:
    """Return for each operation one on another stream that was about to end when it began; -1 if there is
    none. A kernel that fills the device lets the next one in as its last blocks finish.
    """
    work = timeline.work
    best = np.full(len(rows), -1, np.int64)
    when = np.full(len(rows), 1 << 62, np.int64)
    for stream in range(len(links.stream_id)):
        mine = np.flatnonzero(links.stream == stream)
        end = np.maximum.accumulate(work.end[mine])
        at = np.minimum(np.searchsorted(end, work.start[rows], side="right"), len(mine) - 1)
        source = mine[at]
        left = work.end[source] - work.start[rows]
        tail = np.maximum(NEAR_NS, (work.end[source] - work.start[source]) // 5)
        fits = (
            (left > 0) & (left <= tail) & (work.start[source] < work.start[rows]) & (work.end[source] < when)
        )
        fits &= (links.stream[rows] != stream) & (work.device[rows] == links.stream_device[stream])
        best[fits], when[fits] = source[fits], work.end[source[fits]]
    return best


def _after_wait_event(timeline: Timeline, links: LaunchLinks) -> Ints:
    """Return the work launched right after a StreamWaitEvent on the same thread."""
    host = timeline.host
    wait_event = timeline.names_where(lambda name: "StreamWaitEvent" in name)
    calls = np.flatnonzero((host.kind == HostKind.CALL) & wait_event[host.name])
    launching = np.flatnonzero(links.call >= 0)
    launching = launching[np.argsort(links.call[launching], kind="stable")]
    if not len(calls) or not len(launching):
        return np.empty(0, np.int64)
    rows = links.call[launching]
    at = np.searchsorted(rows, calls, side="right")
    at = at[at < len(rows)]
    result: Ints = distinct(launching[at])
    return result


def _reported_crossings(timeline: Timeline, links: LaunchLinks) -> tuple[Ints, Ints]:
    """Return the waits that cuda_sync events report: next work on the waiting stream, last work before the
    record.
    """
    syncs, host = timeline.syncs, timeline.host
    rows = np.flatnonzero(timeline.names_where(lambda name: "Stream Wait Event" in name)[syncs.kind])
    source_of_work: dict[int, int] = {}
    if len(rows):
        calls = np.flatnonzero((host.kind == HostKind.CALL) & (host.correlation >= 0))
        call = dict(zip(host.correlation[calls].tolist(), calls.tolist(), strict=True))
        order, times = links.launched, links.launches
        for row in rows.tolist():
            record, asking = call.get(int(syncs.record[row])), call.get(int(syncs.correlation[row]))
            if record is None or asking is None:
                continue
            on_device = links.stream_device == syncs.device[row]
            waiting = on_device & (links.stream_id == syncs.stream[row])
            recorded = on_device & (links.stream_id == syncs.on_stream[row])
            later = order[waiting[links.stream[order]] & (times > host.start[asking])]
            earlier = order[recorded[links.stream[order]] & (times < host.start[record])]
            if (
                len(later)
                and len(earlier)
                and timeline.work.start[later[0]] >= timeline.work.end[earlier[-1]]
            ):
                source_of_work[int(later[0])] = int(earlier[-1])
    return np.array(list(source_of_work), np.int64), np.array(list(source_of_work.values()), np.int64)
