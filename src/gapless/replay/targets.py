"""Find the device work that a waiting call waits for."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from gapless.replay.links import LaunchLinks
from gapless.trace.timeline import Bools, Ints, Timeline, distinct

EVIDENCE_NS = 20_000
"""A call that frees or allocates memory waited if it ends this soon after work that ran beside it."""
LONG_CALL_NS = 50_000
"""Shorter calls that free or allocate memory are never taken for waits."""

_LONG_WAIT_NS, _MAX_SHARE_AFTER_WORK = 1_000_000, 0.9
"""In longer waits, at most this share may follow the work: no thread needs so long to notice its end."""


class WaitKind(IntEnum):
    """What is waited for."""

    STREAM = 0
    EVENT = 1
    DEVICE = 2
    COPY = 3
    """A copy, with the synchronize after it if there is one."""
    MEMORY = 4
    """Memory freed or allocated: the call ended when the device did."""


def find_targets(timeline: Timeline, links: LaunchLinks, rows: Ints, kind: Ints, previous: Ints) -> Ints:
    """Return the device row whose end each synchronize waits for; -1 if unknown."""
    start = timeline.host.start[rows]
    work = np.full(len(rows), -1, np.int64)
    number = _stream_waited_for(timeline, links, rows, previous)
    for stream in distinct(number[(kind == WaitKind.STREAM) & (number >= 0)]):
        mine = (kind == WaitKind.STREAM) & (number == stream)
        work[mine] = last_launch(timeline, links, start[mine], int(stream))
    mine = kind == WaitKind.DEVICE
    work[mine] = last_launch(timeline, links, start[mine], -1)
    mine = kind == WaitKind.EVENT
    work[mine] = _event_targets(timeline, links, rows[mine])
    odd = (kind != WaitKind.EVENT) & ((work < 0) | _ends_far_from(timeline, rows, work))
    work[odd] = _by_evidence(timeline, links, rows[odd], work[odd])
    work[_is_long_over(timeline, rows, work)] = -1
    return work


def previous_copy(timeline: Timeline, links: LaunchLinks, rows: Ints) -> Ints:
    """Return for each call the device row of the last copy launched before it on its thread; -1 if none."""
    memory = (links.copies.to_host | links.copies.to_device) & (links.call >= 0)
    return _previous_launch(timeline, links, np.flatnonzero(memory), rows)


def _previous_launch(timeline: Timeline, links: LaunchLinks, work: Ints, rows: Ints) -> Ints:
    """Return for each call the one of `work` launched last before it on its thread; -1 if none."""
    if not len(work):
        return np.full(len(rows), -1, np.int64)
    thread = timeline.host.thread
    work = work[np.argsort(links.call[work], kind="stable")]
    call = links.call[work]
    at = np.searchsorted(call, rows) - 1
    return np.where((at >= 0) & (thread[call[at]] == thread[rows]), work[at], -1)


def _stream_waited_for(timeline: Timeline, links: LaunchLinks, rows: Ints, previous: Ints) -> Ints:
    """Return the number of the stream each StreamSynchronize waits for: as recorded, else that of the
    previous copy on its thread, else of the previous launch; -1 if unknown.
    """
    host, syncs = timeline.host, timeline.syncs
    launch = _previous_launch(timeline, links, np.flatnonzero(links.call >= 0), rows)
    source = np.where(previous >= 0, previous, launch)
    result = np.where(source >= 0, links.stream[source], -1)
    recorded = {
        int(syncs.correlation[i]): (int(syncs.device[i]), int(syncs.stream[i]))
        for i in np.flatnonzero(timeline.names_where(lambda name: "Stream Sync" in name)[syncs.kind])
    }
    if recorded:
        numbers = {
            (int(d), int(s)): i
            for i, (d, s) in enumerate(zip(links.stream_device, links.stream_id, strict=True))
        }
        for i, correlation in enumerate(host.correlation[rows].tolist()):
            if correlation in recorded:
                result[i] = numbers.get(recorded[correlation], result[i])
    return result


def last_launch(timeline: Timeline, links: LaunchLinks, times: Ints, stream: int) -> Ints:
    """Return the operation that ends last among those launched before each time (on `stream`; -1: on any)."""
    order, launches = links.launched, links.launches
    if stream >= 0:
        mine = links.stream[order] == stream
        order, launches = order[mine], launches[mine]
    if not len(order):
        return np.full(len(times), -1, np.int64)
    end = timeline.work.end[order]
    best = np.maximum.accumulate(end)
    leads = np.flatnonzero(end == best)
    which = leads[np.searchsorted(leads, np.arange(len(order)), side="right") - 1]
    at = np.searchsorted(launches, times, side="right") - 1
    return np.where(at >= 0, order[which[np.maximum(at, 0)]], -1)


def _event_targets(timeline: Timeline, links: LaunchLinks, rows: Ints) -> Ints:
    """Return what each EventSynchronize waits for: the last work on the event's stream before it was
    recorded, if the driver reported it; else the work that ended right before the call did.
    """
    host, syncs = timeline.host, timeline.syncs
    result = _by_evidence(timeline, links, rows, np.full(len(rows), -1, np.int64))
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
            (links.stream_id == syncs.on_stream[at]) & (links.stream_device == syncs.device[at])
        )
        if len(on):
            result[i] = last_launch(timeline, links, host.start[[record]], int(on[0]))[0]
    return result


def _ends_far_from(timeline: Timeline, rows: Ints, work: Ints) -> Bools:
    """Whether a long wait ended far from the end of its supposed work."""
    host = timeline.host
    off = host.end[rows] - np.maximum(timeline.work.end[np.maximum(work, 0)], host.start[rows])
    length = host.end[rows] - host.start[rows]
    odd: Bools = (length > LONG_CALL_NS) & (
        (off > np.maximum(LONG_CALL_NS, length // 2)) | (off < -EVIDENCE_NS)
    )
    return odd


def _is_long_over(timeline: Timeline, rows: Ints, work: Ints) -> Bools:
    """Whether nearly all of a long wait follows its supposed work, so that the real work is not shown."""
    start, end = timeline.host.start[rows], timeline.host.end[rows]
    off = end - np.maximum(timeline.work.end[np.maximum(work, 0)], start)
    is_over: Bools = (
        (work >= 0) & (end - start > _LONG_WAIT_NS) & (off > _MAX_SHARE_AFTER_WORK * (end - start))
    )
    return is_over


def _by_evidence(timeline: Timeline, links: LaunchLinks, rows: Ints, fallback: Ints) -> Ints:
    """Return the work launched before each call that ended during it and right before its end; else
    `fallback`.
    """
    host, work = timeline.host, timeline.work
    if not len(work) or not len(rows):
        return fallback
    order = np.argsort(work.end, kind="stable")
    at = np.searchsorted(work.end[order], host.end[rows] + 1000, side="right") - 1
    row = order[np.maximum(at, 0)]
    call = links.call[row]
    launched = np.where(call >= 0, host.start[call], work.start[row])
    good = (
        (at >= 0)
        & (work.end[row] > host.start[rows])
        & (host.end[rows] - work.end[row] <= EVIDENCE_NS)
        & (launched < host.start[rows])
    )
    return np.where(good, row, fallback)
