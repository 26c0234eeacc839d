"""The device work that a waiting call waits for."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from gapless.replay.links import Links
from gapless.trace.timeline import Bools, Ints, Timeline, distinct

EVIDENCE = 20_000
"""Nanoseconds: a call that frees or takes memory waited if it ends this soon after the work it ran beside."""
LONG = 50_000
"""Nanoseconds: calls that free or take memory and are shorter are never suspected of waiting."""

_MUCH, _NEARLY = 1_000_000, 0.9
"""Nanoseconds, and a part of them: no thread needs so long to notice that its wait is over."""


class WaitKind(IntEnum):
    """What is waited for."""

    STREAM = 0
    EVENT = 1
    DEVICE = 2
    COPY = 3
    """A copy, with the synchronize after it where there is one."""
    MEMORY = 4
    """Memory freed or taken: the call was seen to end when the device did."""


def targets(timeline: Timeline, known: Links, rows: Ints, kind: Ints, previous: Ints) -> Ints:
    """The device row whose end each synchronize waits for; -1: unknown."""
    start = timeline.host.start[rows]
    work = np.full(len(rows), -1, np.int64)
    number = _stream_waited_for(timeline, known, rows, previous)
    for one in distinct(number[(kind == WaitKind.STREAM) & (number >= 0)]):
        mine = (kind == WaitKind.STREAM) & (number == one)
        work[mine] = last_launched(timeline, known, start[mine], int(one))
    mine = kind == WaitKind.DEVICE
    work[mine] = last_launched(timeline, known, start[mine], -1)
    mine = kind == WaitKind.EVENT
    work[mine] = _recorded(timeline, known, rows[mine])
    odd = (kind != WaitKind.EVENT) & ((work < 0) | _unlike(timeline, rows, work))
    work[odd] = _by_evidence(timeline, known, rows[odd], work[odd])
    work[_long_over(timeline, rows, work)] = -1
    return work


def previous_copy(timeline: Timeline, known: Links, rows: Ints) -> Ints:
    """For each call the device row of the last copy launched before it on its thread; -1: none."""
    memory = (known.copies.to_host | known.copies.to_device) & (known.call >= 0)
    return _previous(timeline, known, np.flatnonzero(memory), rows)


def _previous(timeline: Timeline, known: Links, work: Ints, rows: Ints) -> Ints:
    """For each call the one of `work` launched last before it on its thread; -1: none."""
    if not len(work):
        return np.full(len(rows), -1, np.int64)
    thread = timeline.host.thread
    work = work[np.argsort(known.call[work], kind="stable")]
    call = known.call[work]
    at = np.searchsorted(call, rows) - 1
    return np.where((at >= 0) & (thread[call[at]] == thread[rows]), work[at], -1)


def _stream_waited_for(timeline: Timeline, known: Links, rows: Ints, previous: Ints) -> Ints:
    """The number of the stream each StreamSynchronize waits for: as recorded, else that of the copy before
    it on its thread, else that of the launch before it; -1: unknown."""
    host, syncs = timeline.host, timeline.syncs
    launch = _previous(timeline, known, np.flatnonzero(known.call >= 0), rows)
    source = np.where(previous >= 0, previous, launch)
    result = np.where(source >= 0, known.stream[source], -1)
    recorded = {
        int(syncs.correlation[i]): (int(syncs.device[i]), int(syncs.stream[i]))
        for i in np.flatnonzero(timeline.names_where(lambda name: "Stream Sync" in name)[syncs.kind])
    }
    if recorded:
        numbers = {
            (int(d), int(s)): i
            for i, (d, s) in enumerate(zip(known.stream_device, known.stream_id, strict=True))
        }
        for i, correlation in enumerate(host.correlation[rows].tolist()):
            if correlation in recorded:
                result[i] = numbers.get(recorded[correlation], result[i])
    return result


def last_launched(timeline: Timeline, known: Links, times: Ints, stream: int) -> Ints:
    """The operation that ends last among those launched before each time (on `stream`, -1: on any)."""
    order, launches = known.launched, known.launches
    if stream >= 0:
        mine = known.stream[order] == stream
        order, launches = order[mine], launches[mine]
    if not len(order):
        return np.full(len(times), -1, np.int64)
    end = timeline.work.end[order]
    best = np.maximum.accumulate(end)
    leads = np.flatnonzero(end == best)
    which = leads[np.searchsorted(leads, np.arange(len(order)), side="right") - 1]
    at = np.searchsorted(launches, times, side="right") - 1
    return np.where(at >= 0, order[which[np.maximum(at, 0)]], -1)


def _recorded(timeline: Timeline, known: Links, rows: Ints) -> Ints:
    """What an EventSynchronize waits for: the last work on the event's stream before it was recorded, where
    the driver said which; else, by evidence, the work that ended right before the call did."""
    host, syncs = timeline.host, timeline.syncs
    result = _by_evidence(timeline, known, rows, np.full(len(rows), -1, np.int64))
    kinds = timeline.names_where(lambda name: "Event Sync" in name)
    where = {int(syncs.correlation[i]): int(i) for i in np.flatnonzero(kinds[syncs.kind])}
    if not where:
        return result
    by_correlation = dict(zip(host.correlation.tolist(), range(len(host)), strict=True))
    for i, correlation in enumerate(host.correlation[rows].tolist()):
        at = where.get(correlation)
        record = by_correlation.get(int(syncs.record[at])) if at is not None else None
        if at is None or record is None:
            continue
        on = np.flatnonzero(
            (known.stream_id == syncs.on_stream[at]) & (known.stream_device == syncs.device[at])
        )
        if len(on):
            result[i] = last_launched(timeline, known, host.start[[record]], int(on[0]))[0]
    return result


def _unlike(timeline: Timeline, rows: Ints, work: Ints) -> Bools:
    """Whether a long wait ended far from the end of the work it is thought to wait for."""
    host = timeline.host
    off = host.end[rows] - np.maximum(timeline.work.end[np.maximum(work, 0)], host.start[rows])
    length = host.end[rows] - host.start[rows]
    odd: Bools = (length > LONG) & ((off > np.maximum(LONG, length // 2)) | (off < -EVIDENCE))
    return odd


def _long_over(timeline: Timeline, rows: Ints, work: Ints) -> Bools:
    """Whether nearly all of a long wait lies behind the work it is thought to wait for: that is not shown."""
    start, end = timeline.host.start[rows], timeline.host.end[rows]
    off = end - np.maximum(timeline.work.end[np.maximum(work, 0)], start)
    found: Bools = (work >= 0) & (end - start > _MUCH) & (off > _NEARLY * (end - start))
    return found


def _by_evidence(timeline: Timeline, known: Links, rows: Ints, fallback: Ints) -> Ints:
    """Work launched before each call that ended within it and right before its end; else `fallback`."""
    host, work = timeline.host, timeline.work
    if not len(work) or not len(rows):
        return fallback
    order = np.argsort(work.end, kind="stable")
    at = np.searchsorted(work.end[order], host.end[rows] + 1000, side="right") - 1
    row = order[np.maximum(at, 0)]
    call = known.call[row]
    launched = np.where(call >= 0, host.start[call], work.start[row])
    good = (
        (at >= 0)
        & (work.end[row] > host.start[rows])
        & (host.end[rows] - work.end[row] <= EVIDENCE)
        & (launched < host.start[rows])
    )
    return np.where(good, row, fallback)
