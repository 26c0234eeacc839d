"""Find the calls in which the host waits for the device, and the work each waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gapless.model.copies import STAGED
from gapless.replay.links import LaunchLinks, find_links
from gapless.replay.targets import (
    EVIDENCE_NS,
    LONG_CALL_NS,
    WaitKind,
    find_targets,
    last_launch,
    previous_copy,
)
from gapless.trace.timeline import Bools, ColumnTable, HostKind, Ints, Timeline, distinct, is_among

MAX_PAIR_GAP_NS = 50_000
"""A synchronize that begins this soon after a copy, with no other launch between, belongs to the copy."""


@dataclass(frozen=True)
class WaitTable(ColumnTable):
    """The waits of a profile, ordered by `end`.

    `host` is the row of the call in `Timeline.host`: of the copy, if a copy and the synchronize after it form
    one wait; `sync` is then the row of the latter (-1 else). `blocks` says whether the call `host` itself
    blocks (a staged copy leaves that to its synchronize). `start` to `end` spans both calls; `blocked` is the
    time spent in those that block, in nanoseconds. `work` is the row in `Timeline.work` whose end is waited
    for, -1 if the profile does not show it; `copy` the copy's own row or -1. `final` marks the synchronize
    when the profiler stops.
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


def find_waits(timeline: Timeline, links: LaunchLinks | None = None) -> WaitTable:
    """Find every call of `timeline` in which the host waits, or may wait, for the device."""
    links = links or find_links(timeline)
    calls = np.flatnonzero(timeline.host.kind == HostKind.CALL)
    syncs, paired = _sync_rows(timeline, links, calls)
    copying = _blocking_copies(timeline, links)
    parts = [syncs, _copy_rows(timeline, copying[~is_among(copying, paired)], links)]
    parts.append(_memory_rows(timeline, links, calls))
    columns = [np.concatenate([part[i] for part in parts]) for i in range(len(parts[0]))]
    kind, host, sync, blocks, work, copy, final = columns
    start = timeline.host.start[host]
    last = np.where(sync >= 0, sync, host)
    end = timeline.host.end[last]
    blocked = np.where(blocks, timeline.host.end[host] - start, 0)
    blocked += np.where(sync >= 0, end - timeline.host.start[last], 0)
    order = np.lexsort((start, end))
    table = WaitTable(kind.astype(np.int8), host, sync, blocks.astype(bool), start, end, blocked, work, copy,
                  final.astype(bool))  # fmt: skip
    return table.take(order[_is_outermost(timeline, table)[order]])


def wait_positions(table: WaitTable) -> dict[int, int]:
    """Return the position in `table` of each host row of a wait: of a copy, and of its synchronize."""
    positions = {row: at for at, row in enumerate(table.sync.tolist()) if row >= 0}
    positions.update((row, at) for at, row in enumerate(table.host.tolist()))
    return positions


Rows = tuple[Any, Any, Any, Any, Any, Any, Any]
"""Columns kind, host, sync, blocks, work, copy and final."""


def _sync_rows(timeline: Timeline, links: LaunchLinks, calls: Ints) -> tuple[Rows, Ints]:
    """Return the synchronizing calls, merged with the copies they end, and those copies' device rows."""
    rows, kind = _sync_calls(timeline, links, calls)
    count = len(rows)
    none, no, yes = np.full(count, -1, np.int64), np.zeros(count, bool), np.ones(count, bool)
    if not len(timeline.work):
        return (kind, rows, none, yes, none, none, no), none[:0]
    previous = previous_copy(timeline, links, rows)
    near = (previous >= 0) & (kind == WaitKind.STREAM) & _is_adjacent(timeline, links, previous, rows)
    work = find_targets(timeline, links, rows, kind, previous)
    copy = np.where(near, previous, -1)
    first = np.where(near, links.call[previous], rows)
    blocks = np.where(near, _copy_blocks(timeline, links, previous), True)
    final = _is_final(timeline, links, rows, kind)
    kind = np.where(near, WaitKind.COPY, kind)
    return (kind, first, np.where(near, rows, -1), blocks, work, copy, final), copy[near]


def _sync_calls(timeline: Timeline, links: LaunchLinks, calls: Ints) -> tuple[Ints, Ints]:
    """Return the rows of synchronizing calls and the kind of each."""
    names, host = links.names, timeline.host
    wanted = names.stream_sync | names.event_sync | names.device_sync
    rows = calls[wanted[host.name[calls]]]
    name = host.name[rows]
    kind = np.where(names.stream_sync[name], WaitKind.STREAM, WaitKind.DEVICE)
    return rows, np.where(names.event_sync[name], WaitKind.EVENT, kind)


def _is_final(timeline: Timeline, links: LaunchLinks, rows: Ints, kind: Ints) -> Bools:
    """Mark the last wait for the whole device if nothing is launched after it: the profiler's own."""
    start = timeline.host.start[rows]
    final: Bools = (kind == WaitKind.DEVICE) & (start >= links.launches[-1])
    last = np.flatnonzero(final)
    final[last[np.argsort(start[last], kind="stable")][:-1]] = False
    return final


def _is_adjacent(timeline: Timeline, links: LaunchLinks, copy: Ints, rows: Ints) -> Bools:
    """Whether nothing was launched between a copy and the synchronize `rows`, which follows soon."""
    host = timeline.host
    call = links.call[copy]
    launching = distinct(links.call[links.call >= 0])
    between = np.searchsorted(launching, rows) - np.searchsorted(launching, call, side="right")
    soon: Bools = (host.start[rows] - host.end[call] <= MAX_PAIR_GAP_NS) & (between == 0)
    soon[1:] &= rows[:-1] <= call[1:]  # a second synchronize is a separate wait
    return soon


def _blocking_copies(timeline: Timeline, links: LaunchLinks) -> Ints:
    """Return the device rows of copies whose call blocks."""
    rows = np.flatnonzero((links.copies.to_host | links.copies.to_device) & (links.call >= 0))
    return rows[_copy_blocks(timeline, links, rows)]


def _copy_blocks(timeline: Timeline, links: LaunchLinks, rows: Ints) -> Bools:
    """Whether the call of each copy returns only when the copy is done, or nearly."""
    if not len(rows):
        return np.zeros(0, bool)
    host, work, kinds = timeline.host, timeline.work, links.copies
    call = links.call[rows]
    name = host.name[call]
    # the call may return while the last part is on its way
    tail = np.maximum(EVIDENCE_NS, (work.end[rows] - work.start[rows]) // 10)
    waited = host.end[call] >= work.end[rows] - tail
    small = kinds.to_device[rows] & (work.bytes[rows] >= 0) & (work.bytes[rows] <= STAGED)
    synchronous = links.names.copy[name] & ~links.names.asynchronous_copy[name]
    memory_is_known = kinds.pageable[rows] | kinds.pinned[rows]
    by_memory = np.where(kinds.pageable[rows], kinds.to_host[rows] | ~small, synchronous)
    # AMD's names don't show the memory: a synchronous copy blocks, any other if it was observed to
    by_name = synchronous | (waited & (host.end[call] > work.end[rows]))
    blocks: Bools = np.where(memory_is_known, by_memory & waited, by_name & waited)
    return blocks


def _copy_rows(timeline: Timeline, copy: Ints, links: LaunchLinks) -> Rows:
    count = len(copy)
    none = np.full(count, -1, np.int64)
    yes = np.ones(count, bool)
    return np.full(count, WaitKind.COPY), links.call[copy], none, yes, copy, copy, ~yes


def _memory_rows(timeline: Timeline, links: LaunchLinks, calls: Ints) -> Rows:
    """Return calls that free or allocate memory and ended when the device ran out of work."""
    host, work = timeline.host, timeline.work
    rows = calls[links.names.memory[host.name[calls]]]
    rows = rows[host.end[rows] - host.start[rows] > LONG_CALL_NS]
    target = last_launch(timeline, links, host.start[rows], -1)
    if len(work):
        end = work.end[np.maximum(target, 0)]
        ended_with_work = (target >= 0) & (end > host.start[rows]) & (end <= host.end[rows])
        ended_with_work &= host.end[rows] - end <= EVIDENCE_NS
        rows, target = rows[ended_with_work], target[ended_with_work]
    else:
        rows, target = rows[:0], target[:0]
    count = len(rows)
    none = np.full(count, -1, np.int64)
    yes = np.ones(count, bool)
    return np.full(count, WaitKind.MEMORY), rows, none, yes, target, none, ~yes


def _is_outermost(timeline: Timeline, table: WaitTable) -> Bools:
    """Mark waits that are not inside other waits of their thread (a synchronize made by a copy's own
    call).
    """
    thread = timeline.host.thread[table.host]
    order = np.lexsort((-table.end, table.start, thread))
    span = int(table.end.max(initial=0)) + 1
    end = table.end[order] + thread[order].astype(np.int64) * span
    reach = np.maximum.accumulate(np.concatenate([[-1], end[:-1]])) if len(end) else end
    keep = np.ones(len(table), bool)
    keep[order] = end > reach
    return keep


__all__ = ["LaunchLinks", "WaitKind", "WaitTable", "find_links", "find_waits"]
