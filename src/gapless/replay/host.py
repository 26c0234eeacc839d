"""Find moments at which a thread's clock is set by something other than its own past."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gapless.replay.latency import LaunchTimes, WaitReturns, group_medians
from gapless.replay.threads import Handovers, find_handovers
from gapless.replay.waits import LaunchLinks, WaitKind, WaitTable
from gapless.trace.names import LOADING
from gapless.trace.timeline import ColumnTable, HostKind, Ints, Timeline, concatenate, is_among

QUEUE_DEPTH = 1022
"""Operations that CUDA queues per stream before a launch blocks."""
CHECKED_LAUNCHES = 64
"""One launch in so many is checked against the queue's depth."""
MIN_LATE_NS, MIN_LATE_SHARE = 1_000_000, 0.02
"""Nanoseconds, and a share of the time since the previous batch: a data loader with workers that takes longer
than both had no batch ready. Shorter times are the host's own work of receiving a batch.
"""
MAX_UNBLOCKED_COPY_NS = 6_000
"""The longest that the call of a copy takes once it no longer blocks."""

WAIT, HANDOVER, LOADER, QUEUE, RIDER = range(5)


@dataclass(frozen=True)
class Anchors(ColumnTable):
    """Moments of threads, ordered by thread and `leave`.

    The thread begins to wait at `arrive` and continues at `leave`, as recorded. It needs `own` nanoseconds
    itself (`bare` if the wait is removed) and continues no earlier than `after` nanoseconds past the end of
    the operation `work` (its start if `kind` is QUEUE); or past the moment `stopped` of the thread `source`;
    or past the origin (`work` and `source` -1). `wait` is an index into `WaitTable` or -1, `kind` one of
    WAIT, HANDOVER, LOADER, QUEUE and RIDER, whose `wait` is the position of its mark (`riders`).
    """

    kind: Ints
    thread: Ints
    arrive: Ints
    leave: Ints
    own: Ints
    bare: Ints
    work: Ints
    after: Ints
    source: Ints
    stopped: Ints
    wait: Ints


def find_anchors(
    timeline: Timeline,
    links: LaunchLinks,
    table: WaitTable,
    returns: WaitReturns,
    launches: LaunchTimes,
    threads: list[int],
) -> Anchors:
    """Find all anchors of `threads`."""
    moments = concatenate(
        [
            _wait_anchors(timeline, table, returns),
            _handover_anchors(find_handovers(timeline, threads)),
            _queue_anchors(timeline, links, table),
        ]
    )
    moments = concatenate([moments, _outside_others(moments, _loader_anchors(timeline, threads))])
    order = np.lexsort((moments.arrive, moments.leave, moments.thread))
    return moments.take(order)


def _wait_anchors(timeline: Timeline, table: WaitTable, returns: WaitReturns) -> Anchors:
    host = timeline.host
    with_work = np.flatnonzero(table.work >= 0)
    paired = with_work[table.sync[with_work] >= 0]
    alone = with_work[table.sync[with_work] < 0]
    staged = paired[table.blocks[paired]]
    copies = table.kind == WaitKind.COPY

    def rows(which: Ints, call: Ints, own: Ints, bare: Ints, work: Ints, after: Ints) -> Anchors:
        none = np.full(len(which), -1, np.int64)
        return Anchors(
            np.full(len(which), WAIT, np.int64), host.thread[call].astype(np.int64), host.start[call],
            host.end[call], own, bare, work, after, none, none, which,
        )  # fmt: skip

    def kept(which: Ints, own: Ints) -> Ints:
        return np.where(copies[which], np.minimum(own, MAX_UNBLOCKED_COPY_NS), 0)

    return concatenate(
        [
            rows(alone, table.host[alone], returns.own[alone], kept(alone, returns.own[alone]),
                 table.work[alone], returns.after[alone]),
            rows(staged, table.host[staged], returns.copy_own[staged], kept(staged, returns.copy_own[staged]),
                 table.copy[staged], returns.copy_after[staged]),
            rows(paired, table.sync[paired], returns.own[paired], np.zeros(len(paired), np.int64),
                 table.work[paired], returns.after[paired]),
        ]
    )  # fmt: skip


def _handover_anchors(handovers: Handovers) -> Anchors:
    none = np.full(len(handovers.to), -1, np.int64)
    zero = np.zeros(len(handovers.to), np.int64)
    return Anchors(
        zero + HANDOVER, handovers.to, handovers.start, handovers.end, zero, zero, none,
        handovers.end - handovers.stopped,
        handovers.source, handovers.stopped, none,
    )  # fmt: skip


def _queue_anchors(timeline: Timeline, links: LaunchLinks, table: WaitTable) -> Anchors:
    """Return anchors of launches that wait until the operation `QUEUE_DEPTH` before them has begun (CUDA
    only).
    """
    host, work = timeline.host, timeline.work
    parts: list[tuple[Ints, Ints]] = []
    if timeline.facts.vendor == "nvidia":
        single = np.bincount(np.maximum(links.call, 0)) == 1
        for stream in range(len(links.stream_id)):
            mine = links.launched[links.stream[links.launched] == stream]
            mine = mine[links.call[mine] >= 0]
            mine = mine[single[links.call[mine]]]
            later, earlier = (
                mine[QUEUE_DEPTH::CHECKED_LAUNCHES],
                mine[: max(len(mine) - QUEUE_DEPTH, 0) : CHECKED_LAUNCHES],
            )
            parts.append((later, earlier))
    later = np.concatenate([part[0] for part in parts]) if parts else np.empty(0, np.int64)
    earlier = np.concatenate([part[1] for part in parts]) if parts else np.empty(0, np.int64)
    call = links.call[later]
    # if launches continued with more than that queued, this is not the limit
    holds = (work.start[earlier] <= host.end[call]) & ~is_among(call, table.host)
    later, earlier, call = later[holds], earlier[holds], call[holds]
    blocked = work.start[earlier] > host.start[call]
    length = host.end[call] - host.start[call]
    usual = group_medians(np.zeros(len(call), np.int64)[~blocked], length[~blocked], np.array([5_000]))[0]
    none = np.full(len(call), -1, np.int64)
    leave = np.where(blocked, host.end[call], host.start[call])
    own = np.where(blocked, np.minimum(usual, length), 0)
    after = group_medians(
        blocked.astype(np.int64), (host.end[call] - work.start[earlier]), np.array([0, 2_000])
    )
    return Anchors(
        none * 0 + QUEUE, host.thread[call].astype(np.int64), host.start[call], leave, own, own, earlier,
        np.where(blocked, after[1], 0), none, none, none,
    )  # fmt: skip


def loader_rows(timeline: Timeline) -> Ints:
    """Return the host rows in which the next batch is taken from a DataLoader, outermost only."""
    named = timeline.names_where(LOADING.match)
    host = timeline.host
    rows = np.flatnonzero(named[host.name] & (host.kind != HostKind.FRAME))
    if not len(rows):
        return rows
    span = int(host.end.max()) + 1
    offset = host.thread[rows].astype(np.int64) * span
    reach = np.maximum.accumulate(np.concatenate([[-1], (host.end[rows] + offset)[:-1]]))
    return rows[host.start[rows] + offset >= reach]


def _loader_anchors(timeline: Timeline, threads: list[int]) -> Anchors:
    """Return anchors of late batches from worker processes; they arrive at their recorded times."""
    host = timeline.host
    rows = loader_rows(timeline)
    rows = rows[np.isin(host.thread[rows], threads)]
    workers = timeline.names_where(lambda name: "MultiProcessing" in name)
    length = host.end[rows] - host.start[rows]
    many = workers[host.name[rows]]
    same = np.concatenate([[False], host.thread[rows[1:]] == host.thread[rows[:-1]]])[: len(rows)]
    since = np.where(same, host.start[rows] - np.roll(host.start[rows], 1), host.start[rows])
    late = many & (length > np.maximum(MIN_LATE_NS, MIN_LATE_SHARE * since))
    prompt = many & ~late
    own = int(np.median(length[prompt])) if prompt.any() else MIN_LATE_NS // 10
    rows = rows[late]
    none = np.full(len(rows), -1, np.int64)
    return Anchors(
        none * 0 + LOADER, host.thread[rows].astype(np.int64), host.start[rows], host.end[rows],
        none * 0 + own, none * 0 + own, none, host.end[rows], none, none, none,
    )  # fmt: skip


def _outside_others(existing: Anchors, candidates: Anchors) -> Anchors:
    """Return the candidates in which no existing anchor lies."""
    keep = [
        not ((existing.thread == t) & (existing.leave > start) & (existing.arrive < end)).any()
        for t, start, end in zip(candidates.thread, candidates.arrive, candidates.leave, strict=True)
    ]
    return candidates.take(np.array(keep, bool))
