"""Lay out the nodes of a timeline: its moments and what each depends on, without weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gapless.replay.device import Crossings, DeviceOrder
from gapless.replay.host import Anchors
from gapless.replay.latency import LaunchTimes
from gapless.replay.program import Stretches
from gapless.replay.waits import LaunchLinks
from gapless.trace.timeline import Bools, Ints, Timeline


@dataclass(frozen=True)
class DependencyGraph:
    """Nodes: 0 is the origin, then the anchors, the stretches, the crossings and the collectives.

    `previous` is the anchor node before each anchor on its thread, `launcher` that before each launch (0: the
    origin). `rows` are the device operations in stream order and `stretches` how they fold; `hangs` is the
    node a stretch hangs on, `chained` the one before it on its stream. `node_of` maps device rows to the node
    that has their end, for rows whose end another node depends on.
    """

    anchors: Anchors
    previous: Ints
    launcher: Ints
    rows: Ints
    stretches: Stretches
    hangs: Ints
    chained: Ints
    crossings: Crossings
    collectives: Ints
    node_of: Ints
    count: int

    @property
    def first_stretch(self) -> int:
        return 1 + len(self.anchors)

    @property
    def first_crossing(self) -> int:
        return self.first_stretch + len(self.stretches.begin)

    @property
    def first_collective(self) -> int:
        return self.first_crossing + len(self.crossings.work)

    @property
    def moments(self) -> slice:
        return slice(1, self.first_stretch)

    @property
    def folded_edges(self) -> slice:
        return slice(self.first_stretch, self.first_crossing)

    @property
    def crossing_edges(self) -> slice:
        return slice(self.first_crossing, self.first_collective)

    @property
    def peers(self) -> slice:
        return slice(self.first_collective, self.count)


def last_anchor(anchors: Anchors, thread: Ints, time: Ints) -> Ints:
    """Return the node of the last anchor of each thread that was left by each time; 0 if there is none."""
    if not len(anchors):
        return np.zeros(len(time), np.int64)
    low = int(min(anchors.leave.min(), time.min(initial=0)))
    span = int(max(anchors.leave.max(), time.max(initial=0))) - low + 2
    keys = anchors.thread * span + (anchors.leave - low)
    at = np.searchsorted(keys, thread * span + (time - low), side="right") - 1
    has_anchor = (at >= 0) & (anchors.thread[np.maximum(at, 0)] == thread)
    return np.where(has_anchor, at + 1, 0)


def build_graph(
    timeline: Timeline,
    links: LaunchLinks,
    anchors: Anchors,
    launches: LaunchTimes,
    order: DeviceOrder,
    crossings: Crossings,
    collectives: Ints,
) -> DependencyGraph:
    """Build the dependency graph."""
    work = timeline.work
    thread = np.zeros(len(work), np.int64)
    linked = links.call >= 0
    thread[linked] = timeline.host.thread[links.call[linked]]
    launcher = np.where(linked, last_anchor(anchors, thread, launches.time), 0)
    launcher[order.released] = 0
    rows = np.argsort(links.stream, kind="stable")
    stretches = _cut_stretches(rows, launcher, anchors, order, crossings, collectives)
    return _connect(anchors, launcher, rows, stretches, order, crossings, collectives)


def _cut_stretches(
    rows: Ints, launcher: Ints, anchors: Anchors, order: DeviceOrder, crossings: Crossings, collectives: Ints
) -> Stretches:
    """Cut the streams at each operation with a node of its own, or on whose end a node depends."""
    count = len(rows)
    begins_stretch = np.zeros(count, bool)  # begins a stretch, by device row
    ends_stretch = np.zeros(count, bool)  # ends one
    begins_stretch[order.before < 0] = True
    begins_stretch[order.head >= 0] = True
    begins_stretch[order.released] = True
    begins_stretch[crossings.work] = True
    ends_stretch[crossings.source] = True
    ends_stretch[order.head[order.head >= 0]] = True
    ends_stretch[anchors.work[anchors.work >= 0]] = True
    ends_stretch[collectives] = True
    begins_stretch[order.alone] = True
    ends_stretch[order.alone] = True
    hangs = _hanging_nodes(rows, launcher, order)
    begins = begins_stretch[rows]
    begins[1:] |= ends_stretch[rows[:-1]] | (hangs[rows[1:]] != hangs[rows[:-1]])
    if count:
        begins[0] = True
    return Stretches(np.flatnonzero(begins), np.cumsum(begins) - 1)


def _hanging_nodes(rows: Ints, launcher: Ints, order: DeviceOrder) -> Ints:
    """Return the node each operation hangs on; operations that only follow their stream take the previous
    one's.
    """
    on = np.where(order.head >= 0, -2 - order.head, launcher)  # a graph's branch hangs on its head
    follows = order.follows[rows]
    source = np.maximum.accumulate(np.where(follows, 0, np.arange(len(rows)))) if len(rows) else rows
    result = np.empty(len(rows), np.int64)
    result[rows] = on[rows[source]]
    return result


def _find_previous(anchors: Anchors) -> Ints:
    """Return the node of the anchor before each in its thread; 0 if there is none."""
    previous = last_anchor(anchors, anchors.thread, anchors.arrive)
    own = np.arange(1, len(anchors) + 1)
    previous = np.where(previous >= own, own - 1, previous)  # waits of no length
    if len(anchors):
        other = anchors.thread[np.maximum(previous - 1, 0)] != anchors.thread
        previous = np.where(other, 0, previous)
    return previous


def _connect(
    anchors: Anchors, launcher: Ints, rows: Ints, stretches: Stretches,
    order: DeviceOrder, crossings: Crossings, collectives: Ints,
) -> DependencyGraph:  # fmt: skip
    count = len(rows)
    first = 1 + len(anchors)
    size = len(stretches.begin)
    node_of = np.empty(count, np.int64)
    node_of[rows] = first + stretches.stretch_of
    crossing = first + size
    collective = crossing + len(crossings.work)
    node_of[collectives] = np.arange(collective, collective + len(collectives))
    heads = rows[stretches.begin]  # the operation each stretch begins with
    hangs = _hanging_nodes(rows, launcher, order)[heads]
    on_head = hangs <= -2
    hangs[on_head] = node_of[-2 - hangs[on_head]]
    before = order.before[heads]
    chained = np.where(before >= 0, node_of[before], 0)
    at = np.full(count, -1, np.int64)
    at[crossings.work] = np.arange(crossing, crossing + len(crossings.work))
    chained = np.where(at[heads] >= 0, at[heads], chained)
    total = collective + len(collectives)
    previous = _find_previous(anchors)
    return DependencyGraph(
        anchors, previous, launcher, rows, stretches, hangs, chained, crossings, collectives, node_of, total
    )


def find_collectives(timeline: Timeline) -> Bools:
    """Mark the operations that are kernels of collectives."""
    names = timeline.names_where(
        lambda name: name.lower().startswith(("nccl", "rccl", "ncclkernel", "nccldev"))
    )
    collective: Bools = names[timeline.work.name] | (timeline.work.group >= 0)
    return collective
