"""The calls in which the host waits for the device, and the device work each of them waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gapless.model.copies import STAGED
from gapless.replay.links import Links, links
from gapless.replay.targets import EVIDENCE, LONG, WaitKind, last_launched, previous_copy, targets
from gapless.trace.timeline import Bools, HostKind, Ints, Table, Timeline, distinct, is_among

PAIR = 50_000
"""Nanoseconds: a synchronize that begins this soon after a copy, with no other launch between, is its end."""


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


def waits(timeline: Timeline, known: Links | None = None) -> Waits:
    """Every call of `timeline` in which the host waits for the device, or may."""
    known = known or links(timeline)
    calls = np.flatnonzero(timeline.host.kind == HostKind.CALL)
    syncs, paired = _syncs(timeline, known, calls)
    copying = _blocking_copies(timeline, known)
    parts = [syncs, _copy_rows(timeline, copying[~is_among(copying, paired)], known)]
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


Rows = tuple[Any, Any, Any, Any, Any, Any, Any]
"""Columns kind, host, sync, blocks, work, copy and final."""


def _syncs(timeline: Timeline, known: Links, calls: Ints) -> tuple[Rows, Ints]:
    """The synchronizing calls, merged with the copies they end, and those copies' device rows."""
    rows, kind = _sync_calls(timeline, known, calls)
    count = len(rows)
    none, no, yes = np.full(count, -1, np.int64), np.zeros(count, bool), np.ones(count, bool)
    if not len(timeline.work):
        return (kind, rows, none, yes, none, none, no), none[:0]
    previous = previous_copy(timeline, known, rows)
    near = (previous >= 0) & (kind == WaitKind.STREAM) & _adjacent(timeline, known, previous, rows)
    work = targets(timeline, known, rows, kind, previous)
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
    final: Bools = (kind == WaitKind.DEVICE) & (start >= known.launches[-1])
    last = np.flatnonzero(final)
    final[last[np.argsort(start[last], kind="stable")][:-1]] = False
    return final


def _adjacent(timeline: Timeline, known: Links, copy: Ints, rows: Ints) -> Bools:
    """Whether nothing was launched between a copy and the synchronize `rows`, which follows soon."""
    host = timeline.host
    call = known.call[copy]
    launching = distinct(known.call[known.call >= 0])
    between = np.searchsorted(launching, rows) - np.searchsorted(launching, call, side="right")
    soon: Bools = (host.start[rows] - host.end[call] <= PAIR) & (between == 0)
    soon[1:] &= rows[:-1] <= call[1:]  # a second synchronize is a wait of its own
    return soon


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
    target = last_launched(timeline, known, host.start[rows], -1)
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


__all__ = ["Links", "WaitKind", "Waits", "links", "waits"]
