"""The edges of a graph, and their weights under a change."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gapless.replay.change import Change
from gapless.replay.clock import REAL, Clock
from gapless.replay.device import Order
from gapless.replay.graph import Graph, last_anchor
from gapless.replay.host import HANDOVER, LOADER, QUEUE, WAIT, Anchors, loader_rows
from gapless.replay.latency import Launches
from gapless.replay.program import NEVER
from gapless.replay.steps import Steps
from gapless.replay.waits import Links
from gapless.trace.timeline import Bools, Ints, Timeline, distinct


@dataclass(frozen=True)
class Edges:
    """The two nodes that each node depends on, and the time at which it was recorded."""

    a: Ints
    b: Ints
    when: Ints


@dataclass(frozen=True)
class Weights:
    """Weights by node. `own` and `chained` are those of single operations, in stream order; `length` is what
    each takes, by device row; `clock` shows the time of the host."""

    to_a: Ints
    to_b: Ints
    own: Ints
    chained: Ints
    length: Ints
    clock: Clock


def edges(timeline: Timeline, of: Graph, order: Order) -> Edges:
    """The ends of the edges of every node; where there is none, the origin."""
    work, anchors = timeline.work, of.anchors
    a, b, when = (np.zeros(of.count, np.int64) for _ in range(3))
    a[of.moments] = of.previous
    handed = last_anchor(anchors, anchors.source, anchors.stopped)
    looks = np.where(anchors.work >= 0, of.node_of[anchors.work], 0)
    b[of.moments] = np.where(anchors.kind == HANDOVER, handed, looks)
    when[of.moments] = anchors.leave
    a[of.folded], b[of.folded] = of.hangs, of.chained
    ends = np.append(of.stretches.begin[1:], len(of.rows))
    when[of.folded] = work.end[of.rows[ends - 1]]
    before = order.before[of.crossings.work]
    a[of.crossed] = np.where(before >= 0, of.node_of[before], 0)
    b[of.crossed] = of.node_of[of.crossings.source]
    when[of.crossed] = work.end[of.crossings.source]
    by_row = np.empty(len(work), np.int64)
    by_row[of.rows] = of.stretches.of
    a[of.peers] = of.first_stretch + by_row[of.collectives]
    when[of.peers] = work.end[of.collectives]
    return Edges(a, b, when)


def weights(
    timeline: Timeline, of: Graph, at: Edges, launches: Launches, order: Order, clock: Clock, change: Change
) -> Weights:
    """The weight of every edge."""
    length = lengths(timeline, of, change)
    to_a, to_b = np.zeros(of.count, np.int64), np.full(of.count, NEVER, np.int64)
    to_a[of.moments], to_b[of.moments] = _moments(of, at, clock, length, change)
    late = change.pace.latency if change.pace is not None else 1.0
    if late != 1.0:
        launches = replace(launches, delay=np.rint(launches.delay * late).astype(np.int64))
    own, chained = _operations(timeline, of, launches, order, clock, length)
    to_a[of.folded], to_b[of.folded] = of.stretches.fold(own, chained)
    before = order.before[of.crossings.work]
    to_a[of.crossed] = np.where(before >= 0, 0, NEVER)
    to_b[of.crossed] = of.crossings.delay - np.where(before >= 0, order.gap[of.crossings.work], 0)
    if change.collectives == "end":
        to_b[of.peers] = timeline.work.end[of.collectives]
    return Weights(to_a, to_b, own, chained, length, clock)


def removed(anchors: Anchors, waits: Bools) -> Bools:
    """The anchors of the waits marked in `waits`."""
    of_wait = anchors.wait >= 0
    gone: Bools = of_wait & waits[np.maximum(anchors.wait, 0)] if len(waits) else of_wait
    return gone


def _moments(of: Graph, at: Edges, clock: Clock, length: Ints, change: Change) -> tuple[Ints, Ints]:
    anchors = of.anchors
    left = np.concatenate([[0], anchors.leave])  # by node; the origin is at 0
    arrive = np.maximum(anchors.arrive, left[of.previous])
    to_a = clock.between(left[of.previous], arrive) + clock.paced(anchors.own)
    to_b = np.full(len(anchors), NEVER, np.int64)
    waits, queue = anchors.kind == WAIT, anchors.kind == QUEUE
    to_b[waits | queue] = anchors.after[waits | queue]
    to_b[queue] -= length[anchors.work[queue]]
    if change.pace is not None and change.pace.latency != 1.0:
        to_b[waits] = np.rint(to_b[waits] * change.pace.latency).astype(np.int64)
    handed = anchors.kind == HANDOVER
    source = left[at.b[of.moments][handed]]
    to_b[handed] = clock.between(source, anchors.stopped[handed])
    to_b[handed] += clock.between(anchors.stopped[handed], anchors.leave[handed])
    late = anchors.kind == LOADER
    if change.input_free:
        to_a[late] -= clock.paced(anchors.own[late])
    else:
        to_b[late] = anchors.leave[late]
    return to_a, to_b


def _operations(
    timeline: Timeline, of: Graph, launches: Launches, order: Order, clock: Clock, length: Ints
) -> tuple[Ints, Ints]:
    """The weights of single operations, in stream order."""
    work = timeline.work
    left = np.concatenate([[0], of.anchors.leave])[of.launcher]
    own = clock.between(left, np.maximum(launches.time, left)) + launches.delay + length
    own = np.where(order.released, clock.between(np.zeros_like(work.start), work.start) + length, own)
    own[order.follows] = NEVER
    branch = order.head >= 0
    own[branch] = work.start[branch] - work.end[order.head[branch]] + length[branch]
    chained = np.where(order.before >= 0, order.gap + length, NEVER)
    alone = of.crossings.work[order.before[of.crossings.work] < 0]
    chained[alone] = length[alone]
    return own[of.rows], chained[of.rows]


def lengths(timeline: Timeline, of: Graph, change: Change) -> Ints:
    """How long each device operation takes."""
    work = timeline.work
    length = work.end - work.start
    if change.collectives == "end" and len(of.collectives):
        # What the peers do not decide is the shortest that such a collective took.
        rows = of.collectives
        alike = np.unique(
            np.stack([work.name[rows].astype(np.int64), work.elements[rows]]), axis=1, return_inverse=True
        )[1].reshape(-1)
        shortest = np.full(int(alike.max()) + 1, 1 << 62, np.int64)
        np.minimum.at(shortest, alike, length[rows])
        length[rows] = shortest[alike]
    for row, factor in change.scaled.items():
        length[row] = round(int(length[row]) * factor)
    return length if change.pace is None else np.rint(length * change.pace.device).astype(np.int64)


def host_clock(timeline: Timeline, known: Links, steps: Steps, change: Change) -> Clock:
    """The host's clock: without the time that the change takes from the host between its waits, and at the
    pace of the host."""
    rate = change.pace.host if change.pace is not None else 1.0
    if not (change.input_free or change.graphed):
        return REAL if rate == 1.0 else replace(REAL, rate=rate)
    none = np.empty(0, np.int64)
    parts = [(none, none)]
    if change.input_free:
        rows = loader_rows(timeline)
        parts.append((timeline.host.start[rows], timeline.host.end[rows]))
    if change.graphed:
        parts.append(_launching(timeline, known, steps))
    starts, ends = (np.concatenate([part[i] for part in parts]) for i in range(2))
    return Clock.without(starts, ends, rate)


def _launching(timeline: Timeline, known: Links, steps: Steps) -> tuple[Ints, Ints]:
    """In each step the time from its first launch to its last."""
    calls = distinct(known.call[known.call >= 0])
    end = np.sort(timeline.host.end[calls])
    low = np.searchsorted(end, steps.start)
    high = np.searchsorted(end, steps.end, side="right") - 1
    some = high > low
    return end[low[some]], end[high[some]]
