"""Determine the edges of a graph, and their weights under a change."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gapless.replay.change import ReplayChange
from gapless.replay.clock import REAL_CLOCK, HostClock
from gapless.replay.device import DeviceOrder
from gapless.replay.graph import DependencyGraph, last_anchor
from gapless.replay.host import HANDOVER, LOADER, QUEUE, WAIT, Anchors, loader_rows
from gapless.replay.latency import LaunchTimes
from gapless.replay.program import NO_EDGE
from gapless.replay.steps import MarkedSteps
from gapless.replay.waits import LaunchLinks
from gapless.trace.timeline import Bools, Ints, Timeline, distinct


@dataclass(frozen=True)
class Edges:
    """The two nodes that each node depends on, and the time at which it was recorded."""

    a: Ints
    b: Ints
    when: Ints


@dataclass(frozen=True)
class Weights:
    """Weights by node. `own` and `chained` are those of single operations, in stream order; `length` is the
    duration of each by device row; `clock` is the host's clock.
    """

    to_a: Ints
    to_b: Ints
    own: Ints
    chained: Ints
    length: Ints
    clock: HostClock


def find_edges(timeline: Timeline, graph: DependencyGraph, order: DeviceOrder) -> Edges:
    """Return both edges of every node; missing ones lead to the origin."""
    work, anchors = timeline.work, graph.anchors
    a, b, when = (np.zeros(graph.count, np.int64) for _ in range(3))
    a[graph.moments] = graph.previous
    handed = last_anchor(anchors, anchors.source, anchors.stopped)
    looks = np.where(anchors.work >= 0, graph.node_of[anchors.work], 0)
    b[graph.moments] = np.where(anchors.kind == HANDOVER, handed, looks)
    when[graph.moments] = anchors.leave
    a[graph.folded_edges], b[graph.folded_edges] = graph.hangs, graph.chained
    ends = np.append(graph.stretches.begin[1:], len(graph.rows))
    when[graph.folded_edges] = work.end[graph.rows[ends - 1]]
    before = order.before[graph.crossings.work]
    a[graph.crossing_edges] = np.where(before >= 0, graph.node_of[before], 0)
    b[graph.crossing_edges] = graph.node_of[graph.crossings.source]
    when[graph.crossing_edges] = work.end[graph.crossings.source]
    by_row = np.empty(len(work), np.int64)
    by_row[graph.rows] = graph.stretches.stretch_of
    a[graph.peers] = graph.first_stretch + by_row[graph.collectives]
    when[graph.peers] = work.end[graph.collectives]
    return Edges(a, b, when)


def compute_weights(
    timeline: Timeline,
    graph: DependencyGraph,
    node_edges: Edges,
    launches: LaunchTimes,
    order: DeviceOrder,
    clock: HostClock,
    change: ReplayChange,
) -> Weights:
    """Return the weight of every edge."""
    length = work_lengths(timeline, graph, change)
    to_a, to_b = np.zeros(graph.count, np.int64), np.full(graph.count, NO_EDGE, np.int64)
    to_a[graph.moments], to_b[graph.moments] = _anchor_weights(graph, node_edges, clock, length, change)
    late = change.pace.latency if change.pace is not None else 1.0
    if late != 1.0:
        launches = replace(launches, delay=np.rint(launches.delay * late).astype(np.int64))
    own, chained = _operation_weights(timeline, graph, launches, order, clock, length)
    to_a[graph.folded_edges], to_b[graph.folded_edges] = graph.stretches.fold(own, chained)
    before = order.before[graph.crossings.work]
    to_a[graph.crossing_edges] = np.where(before >= 0, 0, NO_EDGE)
    to_b[graph.crossing_edges] = graph.crossings.delay - np.where(
        before >= 0, order.gap[graph.crossings.work], 0
    )
    if change.collectives == "end":
        to_b[graph.peers] = timeline.work.end[graph.collectives]
    return Weights(to_a, to_b, own, chained, length, clock)


def removed_anchors(anchors: Anchors, marks: Bools) -> Bools:
    """Mark the anchors of the waits and riders marked in `marks`."""
    of_wait = anchors.wait >= 0
    gone: Bools = of_wait & marks[np.maximum(anchors.wait, 0)] if len(marks) else of_wait
    return gone


def _anchor_weights(
    graph: DependencyGraph, node_edges: Edges, clock: HostClock, length: Ints, change: ReplayChange
) -> tuple[Ints, Ints]:
    anchors = graph.anchors
    left = np.concatenate([[0], anchors.leave])  # by node; the origin is at 0
    arrive = np.maximum(anchors.arrive, left[graph.previous])
    to_a = clock.between(left[graph.previous], arrive) + clock.scale(anchors.own)
    to_b = np.full(len(anchors), NO_EDGE, np.int64)
    waits, queue = anchors.kind == WAIT, anchors.kind == QUEUE
    to_b[waits | queue] = anchors.after[waits | queue]
    to_b[queue] -= length[anchors.work[queue]]
    if change.pace is not None and change.pace.latency != 1.0:
        to_b[waits] = np.rint(to_b[waits] * change.pace.latency).astype(np.int64)
    handed = anchors.kind == HANDOVER
    source = left[node_edges.b[graph.moments][handed]]
    to_b[handed] = clock.between(source, anchors.stopped[handed])
    to_b[handed] += clock.between(anchors.stopped[handed], anchors.leave[handed])
    late = anchors.kind == LOADER
    if change.input_free:
        to_a[late] -= clock.scale(anchors.own[late])
    else:
        to_b[late] = anchors.leave[late]
    return to_a, to_b


def _operation_weights(
    timeline: Timeline,
    graph: DependencyGraph,
    launches: LaunchTimes,
    order: DeviceOrder,
    clock: HostClock,
    length: Ints,
) -> tuple[Ints, Ints]:
    """Return the weights of single operations, in stream order."""
    work = timeline.work
    left = np.concatenate([[0], graph.anchors.leave])[graph.launcher]
    own = clock.between(left, np.maximum(launches.time, left)) + launches.delay + length
    own = np.where(order.released, clock.between(np.zeros_like(work.start), work.start) + length, own)
    own[order.follows] = NO_EDGE
    branch = order.head >= 0
    own[branch] = work.start[branch] - work.end[order.head[branch]] + length[branch]
    chained = np.where(order.before >= 0, order.gap + length, NO_EDGE)
    alone = graph.crossings.work[order.before[graph.crossings.work] < 0]
    chained[alone] = length[alone]
    return own[graph.rows], chained[graph.rows]


def work_lengths(timeline: Timeline, graph: DependencyGraph, change: ReplayChange) -> Ints:
    """Return how long each device operation takes."""
    work = timeline.work
    length = work.end - work.start
    if change.collectives == "end" and len(graph.collectives):
        # the shortest such collective shows the time that does not depend on the peers
        rows = graph.collectives
        alike = np.unique(
            np.stack([work.name[rows].astype(np.int64), work.elements[rows]]), axis=1, return_inverse=True
        )[1].reshape(-1)
        shortest = np.full(int(alike.max()) + 1, 1 << 62, np.int64)
        np.minimum.at(shortest, alike, length[rows])
        length[rows] = shortest[alike]
    for row, factor in change.scaled.items():
        length[row] = round(int(length[row]) * factor)
    return length if change.pace is None else np.rint(length * change.pace.device).astype(np.int64)


def host_clock(timeline: Timeline, links: LaunchLinks, steps: MarkedSteps, change: ReplayChange) -> HostClock:
    """Return the host's clock under the change: its pace, and without the time that the change removes
    between waits.
    """
    rate = change.pace.host if change.pace is not None else 1.0
    if not (change.input_free or change.graphed):
        return REAL_CLOCK if rate == 1.0 else replace(REAL_CLOCK, rate=rate)
    none = np.empty(0, np.int64)
    parts = [(none, none)]
    if change.input_free:
        rows = loader_rows(timeline)
        parts.append((timeline.host.start[rows], timeline.host.end[rows]))
    if change.graphed:
        parts.append(_launch_stretches(timeline, links, steps))
    starts, ends = (np.concatenate([part[i] for part in parts]) for i in range(2))
    return HostClock.without(starts, ends, rate)


def _launch_stretches(timeline: Timeline, links: LaunchLinks, steps: MarkedSteps) -> tuple[Ints, Ints]:
    """Return the interval from the first launch to the last of each step."""
    calls = distinct(links.call[links.call >= 0])
    end = np.sort(timeline.host.end[calls])
    low = np.searchsorted(end, steps.start)
    high = np.searchsorted(end, steps.end, side="right") - 1
    some = high > low
    return end[low[some]], end[high[some]]
