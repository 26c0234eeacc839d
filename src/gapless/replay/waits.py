"""The calls in which the host waits for the device, and the device work each of them waits for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from gapless.replay.links import STAGED, CallNames, Copies, call_names, copies, launching_calls, streams
from gapless.trace.timeline import Bools, HostKind, Ints, Table, Timeline

PAIR = 50_000
"""Nanoseconds: a synchronize that begins this soon after a copy, with no other launch between, is its end."""
EVIDENCE = 20_000
"""Nanoseconds: a call that frees or takes memory waited if it ends this soon after the work it ran beside."""
LONG = 50_000
"""Nanoseconds: calls that free or take memory and are shorter are never suspected of waiting."""


class WaitKind(IntEnum):
    """What is waited for."""

    STREAM = 0
    EVENT = 1
    DEVICE = 2
    COPY = 3
    """A copy, with the synchronize after it where there is one."""
    MEMORY = 4
    """Memory freed or taken: the call was seen to end when the device did."""


@dataclass(frozen=True)
class Waits(Table):
    """The waits of a profile, ordered by `end`.

    `host` is the row of the call in `Timeline.host`: of the copy, where a copy and the synchronize after it
    make one wait, whose row is then `sync` (-1 else). `blocks` says whether the call `host` itself blocks (a
    staged copy leaves that to its synchronize). `start` to `end` reaches over both calls; `blocked` is the
    time spent in those that block, in nanoseconds. `work` is the row in `Timeline.work` whose end is waited
    for, -1 where the profile does not show it; `copy` the copy's own row or -1. `final` marks the synchronize
    at the profiler's stop.
    """

    kind: NDArray[np.int8]
    host: Ints
    sync: Ints
    blocks: Bools
    start: Ints
    end: Ints
    blocked: Ints
    work: Ints
    copy: Ints
    final: Bools


@dataclass(frozen=True)
class Links:
    """What ties the calls of a timeline to its device work; computed once and shared.

    `call` is the launching call of each device operation (-1: none), `stream` the number of its stream.
    `launched` orders operations by the time of their launch, `launches` are these times.
    """

    names: CallNames
    copies: Copies
    call: Ints
    stream: Ints
    stream_device: Ints
    stream_id: Ints
    launched: Ints
    launches: Ints


def links(timeline: Timeline) -> Links:
    """Ties calls and device work together. Work without a call counts as launched when it began."""
    call = launching_calls(timeline)
    number, device, stream = streams(timeline)
    time = timeline.work.start.copy()
    linked = call >= 0
    time[linked] = timeline.host.start[call[linked]]
    order = np.argsort(time, kind="stable")
    return Links(call_names(timeline), copies(timeline), call, number, device, stream, order, time[order])


def waits(timeline: Timeline, known: Links | None = None) -> Waits:
    """Every call of `timeline` in which the host waits for the device, or may."""
    known = known or links(timeline)
    calls = np.flatnonzero(timeline.host.kind == HostKind.CALL)
    syncs, paired = _syncs(timeline, known, calls)
    copying = _blocking_copies(timeline, known)
    parts = [syncs, _copy_rows(timeline, copying[~np.isin(copying, paired)], known)]
    parts.append(_memory_rows(timeline, known, calls))
    columns = [np.concatenate([part[i] for part in parts]) for i in range(len(parts[0]))]
    kind, host, sync, blocks, work, copy, final = columns
    start = timeline.host.start[host]
    last = np.where(sync >= 0, sync, host)
    end = timeline.host.end[last]
    blocked = np.where(blocks, timeline.host.end[host] - start, 0)
    blocked += np.where(sync >= 0, end - timeline.host.start[last], 0)
    order = np.lexsort((start, end))
    table = Waits(kind.astype(np.int8), host, sync, blocks.astype(bool), start, end, blocked, work, copy,
                  final.astype(bool))  # fmt: skip
    return table.take(order[_outermost(timeline, table)[order]])


Rows = tuple[Ints, Ints, Ints, Ints, Ints, Ints, Ints]
"""Columns kind, host, sync, blocks, work, copy and final."""


def _syncs(timeline: Timeline, known: Links, calls: Ints) -> tuple[Rows, Ints]:
    """The synchronizing calls, merged with the copies they end, and those copies' device rows."""
    rows, kind = _sync_calls(timeline, known, calls)
    count = len(rows)
    none, no, yes = np.full(count, -1, np.int64), np.zeros(count, bool), np.ones(count, bool)
    if not len(timeline.work):
        return (kind, rows, none, yes, none, none, no), none[:0]
    previous = _previous_copy(timeline, known, rows)
    near = (previous >= 0) & (kind == WaitKind.STREAM) & _adjacent(timeline, known, previous, rows)
    work = _targets(timeline, known, rows, kind, previous)
    copy = np.where(near, previous, -1)
    first = np.where(near, known.call[previous], rows)
    blocks = np.where(near, _copy_blocks(timeline, known, previous), True)
    final = _final(timeline, known, rows, kind)
    kind = np.where(near, WaitKind.COPY, kind)
    return (kind, first, np.where(near, rows, -1), blocks, work, copy, final), copy[near]


def _sync_calls(timeline: Timeline, known: Links, calls: Ints) -> tuple[Ints, Ints]:
    """The rows of synchronizing calls and the kind of each."""
    names, host = known.names, timeline.host
    wanted = names.stream_sync | names.event_sync | names.device_sync
    rows = calls[wanted[host.name[calls]]]
    name = host.name[rows]
    kind = np.where(names.stream_sync[name], WaitKind.STREAM, WaitKind.DEVICE)
    return rows, np.where(names.event_sync[name], WaitKind.EVENT, kind)


def _final(timeline: Timeline, known: Links, rows: Ints, kind: Ints) -> Bools:
    """Marks the last wait for the whole device, if nothing is launched after it: the profiler's own."""
    start = timeline.host.start[rows]
    final = (kind == WaitKind.DEVICE) & (start >= known.launches[-1])
    last = np.flatnonzero(final)
    final[last[np.argsort(start[last], kind="stable")][:-1]] = False
    return final


def _targets(timeline: Timeline, known: Links, rows: Ints, kind: Ints, previous: Ints) -> Ints:
    """The device row whose end each synchronize waits for; -1: unknown."""
    start = timeline.host.start[rows]
    work = np.full(len(rows), -1, np.int64)
    number = _stream_waited_for(timeline, known, rows, previous)
    for one in np.unique(number[(kind == WaitKind.STREAM) & (number >= 0)]):
        mine = (kind == WaitKind.STREAM) & (number == one)
        work[mine] = _last_launched(timeline, known, start[mine], int(one))
    mine = kind == WaitKind.DEVICE
    work[mine] = _last_launched(timeline, known, start[mine], -1)
    mine = kind == WaitKind.EVENT
    work[mine] = _recorded(timeline, known, rows[mine])
    odd = (kind != WaitKind.EVENT) & ((work < 0) | _unlike(timeline, rows, work))
    work[odd] = _by_evidence(timeline, known, rows[odd], work[odd])
    return work


def _previous_copy(timeline: Timeline, known: Links, rows: Ints) -> Ints:
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


def _adjacent(timeline: Timeline, known: Links, copy: Ints, rows: Ints) -> Bools:
    """Whether nothing was launched between a copy and the synchronize `rows`, which follows soon."""
    host = timeline.host
    call = known.call[copy]
    launching = np.unique(known.call[known.call >= 0])
    between = np.searchsorted(launching, rows) - np.searchsorted(launching, call, side="right")
    soon: Bools = (host.start[rows] - host.end[call] <= PAIR) & (between == 0)
    return soon


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


def _last_launched(timeline: Timeline, known: Links, times: Ints, stream: int) -> Ints:
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
            result[i] = _last_launched(timeline, known, host.start[[record]], int(on[0]))[0]
    return result


def _unlike(timeline: Timeline, rows: Ints, work: Ints) -> Bools:
    """Whether a long wait ended far from the end of the work it is thought to wait for."""
    host = timeline.host
    off = host.end[rows] - np.maximum(timeline.work.end[np.maximum(work, 0)], host.start[rows])
    length = host.end[rows] - host.start[rows]
    odd: Bools = (length > LONG) & ((off > np.maximum(LONG, length // 2)) | (off < -EVIDENCE))
    return odd


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


def _blocking_copies(timeline: Timeline, known: Links) -> Ints:
    """The device rows of copies whose call blocks."""
    rows = np.flatnonzero((known.copies.to_host | known.copies.to_device) & (known.call >= 0))
    return rows[_copy_blocks(timeline, known, rows)]


def _copy_blocks(timeline: Timeline, known: Links, rows: Ints) -> Bools:
    """Whether the call of each copy returns only when the copy is done, or nearly."""
    if not len(rows):
        return np.zeros(0, bool)
    host, work, kinds = timeline.host, timeline.work, known.copies
    call = known.call[rows]
    name = host.name[call]
    # The call may return while the last part is on its way.
    tail = np.maximum(EVIDENCE, (work.end[rows] - work.start[rows]) // 10)
    waited = host.end[call] >= work.end[rows] - tail
    small = kinds.to_device[rows] & (work.bytes[rows] >= 0) & (work.bytes[rows] <= STAGED)
    synchronous = known.names.copy[name] & ~known.names.asynchronous_copy[name]
    told = kinds.pageable[rows] | kinds.pinned[rows]
    by_memory = np.where(kinds.pageable[rows], kinds.to_host[rows] | ~small, synchronous)
    # AMD's names do not tell the memory: a synchronous copy blocks, any other did if it is seen to.
    by_name = synchronous | (waited & (host.end[call] > work.end[rows]))
    blocks: Bools = np.where(told, by_memory & waited, by_name & waited)
    return blocks


def _copy_rows(timeline: Timeline, copy: Ints, known: Links) -> Rows:
    count = len(copy)
    none = np.full(count, -1, np.int64)
    yes = np.ones(count, bool)
    return np.full(count, WaitKind.COPY), known.call[copy], none, yes, copy, copy, ~yes


def _memory_rows(timeline: Timeline, known: Links, calls: Ints) -> Rows:
    """Calls that free or take memory and were seen to end when the device ran out of work."""
    host, work = timeline.host, timeline.work
    rows = calls[known.names.memory[host.name[calls]]]
    rows = rows[host.end[rows] - host.start[rows] > LONG]
    target = _last_launched(timeline, known, host.start[rows], -1)
    if len(work):
        end = work.end[np.maximum(target, 0)]
        seen = (target >= 0) & (end > host.start[rows]) & (end <= host.end[rows])
        seen &= host.end[rows] - end <= EVIDENCE
        rows, target = rows[seen], target[seen]
    else:
        rows, target = rows[:0], target[:0]
    count = len(rows)
    none = np.full(count, -1, np.int64)
    yes = np.ones(count, bool)
    return np.full(count, WaitKind.MEMORY), rows, none, yes, target, none, ~yes


def _outermost(timeline: Timeline, table: Waits) -> Bools:
    """Drops waits inside other waits of their thread (a synchronize that a copy's own call makes)."""
    thread = timeline.host.thread[table.host]
    order = np.lexsort((-table.end, table.start, thread))
    span = int(table.end.max(initial=0)) + 1
    end = table.end[order] + thread[order].astype(np.int64) * span
    reach = np.maximum.accumulate(np.concatenate([[-1], end[:-1]])) if len(end) else end
    keep = np.ones(len(table), bool)
    keep[order] = end > reach
    return keep
