"""Moments at which a thread's clock is set by something other than its own past."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gapless.replay.latency import Launches, Returns, medians
from gapless.replay.threads import Handovers, handovers
from gapless.replay.waits import Links, WaitKind, Waits
from gapless.trace.names import LOADING
from gapless.trace.timeline import HostKind, Ints, Table, Timeline, concatenate, is_among

DEPTH = 1022
"""Operations that CUDA queues per stream before a launch blocks."""
EVERY = 64
"""A launch in so many is checked against it."""
LATE, LATE_SHARE = 1_000_000, 0.02
"""Nanoseconds, and a share of the time since the batch before: a data loader with workers that takes longer
than both had no batch ready. What is shorter is the host's own work of taking a batch over."""
KEPT = 6_000
"""Nanoseconds: the most that the call of a copy takes when it no longer blocks."""

WAIT, HANDOVER, LOADER, QUEUE = range(4)


@dataclass(frozen=True)
class Anchors(Table):
    """Moments of threads, ordered by thread and `leave`.

    At `arrive` the thread begins to wait and at `leave` it goes on, as recorded. It needs `own` nanoseconds
    itself (`bare` when the wait is removed) and goes on no earlier than `after` nanoseconds past the end of
    the operation `work` (its start where `kind` is QUEUE); or past the moment `stopped` of the thread
    `source`; or past the origin (`work` and `source` -1). `wait` is a position in `Waits` or -1, `kind` one
    of WAIT, HANDOVER, LOADER and QUEUE.
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


def anchors(
    timeline: Timeline, known: Links, table: Waits, returns: Returns, launches: Launches, threads: list[int]
) -> Anchors:
    """All such moments of `threads`."""
    found = concatenate(
        [
            _wait_anchors(timeline, table, returns),
            _handover_anchors(handovers(timeline, threads)),
            _queue_anchors(timeline, known, table),
        ]
    )
    found = concatenate([found, _free_of(found, _loader_anchors(timeline, threads))])
    order = np.lexsort((found.arrive, found.leave, found.thread))
    return found.take(order)


def _wait_anchors(timeline: Timeline, table: Waits, returns: Returns) -> Anchors:
    host = timeline.host
    known = np.flatnonzero(table.work >= 0)
    paired = known[table.sync[known] >= 0]
    alone = known[table.sync[known] < 0]
    staged = paired[table.blocks[paired]]
    copies = table.kind == WaitKind.COPY

    def rows(which: Ints, call: Ints, own: Ints, bare: Ints, work: Ints, after: Ints) -> Anchors:
        none = np.full(len(which), -1, np.int64)
        return Anchors(
            np.full(len(which), WAIT, np.int64), host.thread[call].astype(np.int64), host.start[call],
            host.end[call], own, bare, work, after, none, none, which,
        )  # fmt: skip

    def kept(which: Ints, own: Ints) -> Ints:
        return np.where(copies[which], np.minimum(own, KEPT), 0)

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


def _handover_anchors(found: Handovers) -> Anchors:
    none = np.full(len(found.to), -1, np.int64)
    zero = np.zeros(len(found.to), np.int64)
    return Anchors(
        zero + HANDOVER, found.to, found.start, found.end, zero, zero, none, found.end - found.stopped,
        found.source, found.stopped, none,
    )  # fmt: skip


def _queue_anchors(timeline: Timeline, known: Links, table: Waits) -> Anchors:
    """Launches that must wait until the operation `DEPTH` places before them has begun (CUDA only)."""
    host, work = timeline.host, timeline.work
    parts: list[tuple[Ints, Ints]] = []
    if timeline.facts.vendor == "nvidia":
        single = np.bincount(np.maximum(known.call, 0)) == 1
        for stream in range(len(known.stream_id)):
            mine = known.launched[known.stream[known.launched] == stream]
            mine = mine[known.call[mine] >= 0]
            mine = mine[single[known.call[mine]]]
            later, earlier = mine[DEPTH::EVERY], mine[: max(len(mine) - DEPTH, 0) : EVERY]
            parts.append((later, earlier))
    later = np.concatenate([part[0] for part in parts]) if parts else np.empty(0, np.int64)
    earlier = np.concatenate([part[1] for part in parts]) if parts else np.empty(0, np.int64)
    call = known.call[later]
    # Where launches went on with more than that queued, the limit is not this one.
    holds = (work.start[earlier] <= host.end[call]) & ~is_among(call, table.host)
    later, earlier, call = later[holds], earlier[holds], call[holds]
    blocked = work.start[earlier] > host.start[call]
    length = host.end[call] - host.start[call]
    usual = medians(np.zeros(len(call), np.int64)[~blocked], length[~blocked], np.array([5_000]))[0]
    none = np.full(len(call), -1, np.int64)
    leave = np.where(blocked, host.end[call], host.start[call])
    own = np.where(blocked, np.minimum(usual, length), 0)
    after = medians(blocked.astype(np.int64), (host.end[call] - work.start[earlier]), np.array([0, 2_000]))
    return Anchors(
        none * 0 + QUEUE, host.thread[call].astype(np.int64), host.start[call], leave, own, own, earlier,
        np.where(blocked, after[1], 0), none, none, none,
    )  # fmt: skip


def loader_rows(timeline: Timeline) -> Ints:
    """The host rows in which the next batch is taken from a DataLoader, outermost only."""
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
    """Batches of worker processes that were late: they come when they come."""
    host = timeline.host
    rows = loader_rows(timeline)
    rows = rows[np.isin(host.thread[rows], threads)]
    workers = timeline.names_where(lambda name: "MultiProcessing" in name)
    length = host.end[rows] - host.start[rows]
    many = workers[host.name[rows]]
    same = np.concatenate([[False], host.thread[rows[1:]] == host.thread[rows[:-1]]])[: len(rows)]
    since = np.where(same, host.start[rows] - np.roll(host.start[rows], 1), host.start[rows])
    late = many & (length > np.maximum(LATE, LATE_SHARE * since))
    prompt = many & ~late
    own = int(np.median(length[prompt])) if prompt.any() else LATE // 10
    rows = rows[late]
    none = np.full(len(rows), -1, np.int64)
    return Anchors(
        none * 0 + LOADER, host.thread[rows].astype(np.int64), host.start[rows], host.end[rows],
        none * 0 + own, none * 0 + own, none, host.end[rows], none, none, none,
    )  # fmt: skip


def _free_of(others: Anchors, found: Anchors) -> Anchors:
    """Those of `found` in which no other anchor lies."""
    keep = [
        not ((others.thread == t) & (others.leave > start) & (others.arrive < end)).any()
        for t, start, end in zip(found.thread, found.arrive, found.leave, strict=True)
    ]
    return found.take(np.array(keep, bool))
