"""What device operations wait for on the device: their stream, other streams, the head of their graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gapless.replay.latency import Launches, latest_elsewhere
from gapless.replay.waits import Links
from gapless.trace.timeline import Bools, HostKind, Ints, Timeline, distinct

UNEXPLAINED = 3_000
"""Nanoseconds: work that begins this much later than its stream and its launch allow waited for something."""
NEAR = 30_000
"""Nanoseconds: what it waited for ended at most this long before, where no call says so."""
BEFORE_WINDOW = 200_000
"""Nanoseconds: the first work of a stream that begins this long after its launch was behind earlier work."""


@dataclass(frozen=True)
class Order:
    """For each device operation what else than its launch it waits for.

    `before` is the operation before it on its stream (-1: none) and `gap` what passes between. `head` is the
    head of its graph for operations that follow one on another stream (-1: none). `follows` marks work that
    depends on its stream only: the rest of a graph, and work without a call. `released` marks work that
    begins at a fixed time, as what it waited for lies before the window.
    """

    before: Ints
    gap: Ints
    head: Ints
    follows: Bools
    released: Bools


@dataclass(frozen=True)
class Crossings:
    """Operations (`work`) that wait `delay` nanoseconds after the end of one on another stream (`source`)."""

    work: Ints
    source: Ints
    delay: Ints


def device_order(timeline: Timeline, known: Links, before: Ints, launches: Launches) -> Order:
    """The order of work on the streams."""
    work = timeline.work
    previous = np.maximum(before, 0)
    head = _heads(known)
    rest = head >= 0
    same_stream = rest & (before >= 0) & (known.call[previous] == known.call)
    elsewhere = np.where(rest & ~same_stream, head, -1)
    observed = np.where(before >= 0, work.start - work.end[previous], 0)
    follows = same_stream | (~launches.linked & (before >= 0))
    gap = np.where(follows, observed, launches.gap)
    late = work.start - (launches.time + launches.delay) > BEFORE_WINDOW
    released = (before < 0) & (elsewhere < 0) & (~launches.linked | late)
    return Order(before, gap, elsewhere, follows, released)


def _heads(known: Links) -> Ints:
    """For each operation that shares its call with earlier ones (a graph's) the first of them; -1 else."""
    order = np.argsort(known.call, kind="stable")
    call = known.call[order]
    fresh = np.ones(len(order), bool)
    fresh[1:] = call[1:] != call[:-1]
    first = np.flatnonzero(fresh)[np.cumsum(fresh) - 1] if len(order) else order
    head = np.full(len(order), -1, np.int64)
    inner = ~fresh & (call >= 0)
    head[order[inner]] = order[first[inner]]
    return head


def crossings(timeline: Timeline, known: Links, order: Order, launches: Launches) -> Crossings:
    """Which work waits for another stream: as the driver reported, as the calls suggest, or by its delay."""
    none = np.empty(0, np.int64)
    if len(known.stream_id) < 2:
        return Crossings(none, none, none)
    work = timeline.work
    plain = launches.linked & ~order.follows & (order.head < 0)
    delayed = plain & (work.start - _due(timeline, order, launches) > UNEXPLAINED)
    told_work, told_source = _told(timeline, known)
    asked = np.setdiff1d(np.intersect1d(_asked(timeline, known), np.flatnonzero(plain)), told_work)
    guessed = np.setdiff1d(np.flatnonzero(delayed), np.concatenate([told_work, asked]))
    rows = np.concatenate([asked, guessed])
    source = latest_elsewhere(timeline, known, rows)
    near = (source >= 0) & (work.start[rows] - work.end[source] <= NEAR)
    source = np.where(near | (np.arange(len(rows)) < len(asked)), source, -1)
    crowded = np.flatnonzero(~near & delayed[rows])
    running = _running_elsewhere(timeline, known, rows[crowded])
    source[crowded] = np.where(running >= 0, running, source[crowded])
    rows, source = rows[source >= 0], source[source >= 0]
    rows, source = np.concatenate([told_work, rows]), np.concatenate([told_source, source])
    since = work.start[rows] - work.end[source]
    binding = delayed[rows] & (since <= NEAR)
    keep = binding | ~order.released[rows]
    rows, source, since, binding = rows[keep], source[keep], since[keep], binding[keep]
    after = binding & (since >= 0)
    usual = int(np.median(since[after])) if after.any() else 1_500
    return Crossings(rows, source, np.where(binding, since, np.minimum(usual, since)))


def _due(timeline: Timeline, order: Order, launches: Launches) -> Ints:
    """When each operation would have begun if it waited for its launch and its stream only."""
    free = np.where(order.before >= 0, timeline.work.end[order.before] + order.gap, 0)
    due: Ints = np.maximum(np.where(launches.linked, launches.time + launches.delay, 0), free)
    return due


def _running_elsewhere(timeline: Timeline, known: Links, rows: Ints) -> Ints:
    """For each operation one on another stream that was about to end when it began: a kernel that fills the
    device lets the next one in as its last blocks finish. -1: there is none."""
    work = timeline.work
    best = np.full(len(rows), -1, np.int64)
    when = np.full(len(rows), 1 << 62, np.int64)
    for stream in range(len(known.stream_id)):
        mine = np.flatnonzero(known.stream == stream)
        end = np.maximum.accumulate(work.end[mine])
        at = np.minimum(np.searchsorted(end, work.start[rows], side="right"), len(mine) - 1)
        source = mine[at]
        left = work.end[source] - work.start[rows]
        tail = np.maximum(NEAR, (work.end[source] - work.start[source]) // 5)
        fits = (
            (left > 0) & (left <= tail) & (work.start[source] < work.start[rows]) & (work.end[source] < when)
        )
        fits &= (known.stream[rows] != stream) & (work.device[rows] == known.stream_device[stream])
        best[fits], when[fits] = source[fits], work.end[source[fits]]
    return best


def _asked(timeline: Timeline, known: Links) -> Ints:
    """The work launched right after a StreamWaitEvent on the same thread."""
    host = timeline.host
    wait_event = timeline.names_where(lambda name: "StreamWaitEvent" in name)
    calls = np.flatnonzero((host.kind == HostKind.CALL) & wait_event[host.name])
    launching = np.flatnonzero(known.call >= 0)
    launching = launching[np.argsort(known.call[launching], kind="stable")]
    if not len(calls) or not len(launching):
        return np.empty(0, np.int64)
    rows = known.call[launching]
    at = np.searchsorted(rows, calls, side="right")
    at = at[at < len(rows)]
    result: Ints = distinct(launching[at])
    return result


def _told(timeline: Timeline, known: Links) -> tuple[Ints, Ints]:
    """What cuda_sync events say: the next work on the waiting stream, and the work before the record."""
    syncs, host = timeline.syncs, timeline.host
    rows = np.flatnonzero(timeline.names_where(lambda name: "Stream Wait Event" in name)[syncs.kind])
    found: dict[int, int] = {}
    if len(rows):
        calls = np.flatnonzero((host.kind == HostKind.CALL) & (host.correlation >= 0))
        call = dict(zip(host.correlation[calls].tolist(), calls.tolist(), strict=True))
        order, times = known.launched, known.launches
        for row in rows.tolist():
            record, asking = call.get(int(syncs.record[row])), call.get(int(syncs.correlation[row]))
            if record is None or asking is None:
                continue
            on_device = known.stream_device == syncs.device[row]
            waiting = on_device & (known.stream_id == syncs.stream[row])
            recorded = on_device & (known.stream_id == syncs.on_stream[row])
            later = order[waiting[known.stream[order]] & (times > host.start[asking])]
            earlier = order[recorded[known.stream[order]] & (times < host.start[record])]
            if (
                len(later)
                and len(earlier)
                and timeline.work.start[later[0]] >= timeline.work.end[earlier[-1]]
            ):
                found[int(later[0])] = int(earlier[-1])
    return np.array(list(found), np.int64), np.array(list(found.values()), np.int64)
