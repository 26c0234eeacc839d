"""The nodes of a timeline: which moments there are and what each depends on, before any weight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gapless.replay.device import Crossings, Order
from gapless.replay.host import Anchors
from gapless.replay.latency import Launches
from gapless.replay.program import Stretches
from gapless.replay.waits import Links
from gapless.trace.timeline import Bools, Ints, Timeline


@dataclass(frozen=True)
class Graph:
    """Nodes: 0 is the origin, then the anchors, then the stretches, then the crossings, then the collectives.

    `previous` is the anchor node before each anchor on its thread, `launcher` that before each launch (0: the
    origin). `rows` are the device operations in stream order and `stretches` how they fold; `hangs` is the
    node a stretch hangs on, `chained` the one before it on its stream. `node_of` gives for each device row
    the node at whose time it ends, for those at whose end another node may look.
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
    def folded(self) -> slice:
        return slice(self.first_stretch, self.first_crossing)

    @property
    def crossed(self) -> slice:
        return slice(self.first_crossing, self.first_collective)

    @property
    def peers(self) -> slice:
        return slice(self.first_collective, self.count)


def last_anchor(anchors: Anchors, thread: Ints, time: Ints) -> Ints:
    """The node of the last anchor of each thread that was left by each time; 0: none."""
    if not len(anchors):
        return np.zeros(len(time), np.int64)
    low = int(min(anchors.leave.min(), time.min(initial=0)))
    span = int(max(anchors.leave.max(), time.max(initial=0))) - low + 2
    keys = anchors.thread * span + (anchors.leave - low)
    at = np.searchsorted(keys, thread * span + (time - low), side="right") - 1
    found = (at >= 0) & (anchors.thread[np.maximum(at, 0)] == thread)
    return np.where(found, at + 1, 0)


def graph(
    timeline: Timeline,
    known: Links,
    anchors: Anchors,
    launches: Launches,
    order: Order,
    crossings: Crossings,
    collectives: Ints,
) -> Graph:
    """Lays the nodes out."""
    work = timeline.work
    previous = last_anchor(anchors, anchors.thread, anchors.arrive)
    own = np.arange(1, len(anchors) + 1)
    previous = np.where(previous >= own, own - 1, previous)  # waits of no length
    if len(anchors):
        other = anchors.thread[np.maximum(previous - 1, 0)] != anchors.thread
        previous = np.where(other, 0, previous)
    thread = np.zeros(len(work), np.int64)
    linked = known.call >= 0
    thread[linked] = timeline.host.thread[known.call[linked]]
    launcher = np.where(linked, last_anchor(anchors, thread, launches.time), 0)
    launcher[order.released] = 0
    rows = np.argsort(known.stream, kind="stable")
    stretches = _stretches(rows, launcher, anchors, order, crossings, collectives)
    return _connect(len(work), anchors, previous, launcher, rows, stretches, order, crossings, collectives)


def _stretches(
    rows: Ints, launcher: Ints, anchors: Anchors, order: Order, crossings: Crossings, collectives: Ints
) -> Stretches:
    """Cuts the streams wherever a node begins, or one looks."""
    count = len(rows)
    fresh = np.zeros(count, bool)  # begins a stretch, by device row
    seen = np.zeros(count, bool)  # ends one
    fresh[order.before < 0] = True
    fresh[order.head >= 0] = True
    fresh[order.released] = True
    fresh[crossings.work] = True
    seen[crossings.source] = True
    seen[order.head[order.head >= 0]] = True
    seen[anchors.work[anchors.work >= 0]] = True
    seen[collectives] = True
    hangs = _carried(rows, launcher, order)
    begins = fresh[rows]
    begins[1:] |= seen[rows[:-1]] | (hangs[rows[1:]] != hangs[rows[:-1]])
    if count:
        begins[0] = True
    return Stretches(np.flatnonzero(begins), np.cumsum(begins) - 1)


def _carried(rows: Ints, launcher: Ints, order: Order) -> Ints:
    """The node each operation hangs on; those that only follow their stream take that of the one before."""
    on = np.where(order.head >= 0, -2 - order.head, launcher)  # a graph's branch hangs on its head
    follows = order.follows[rows]
    source = np.maximum.accumulate(np.where(follows, 0, np.arange(len(rows)))) if len(rows) else rows
    result = np.empty(len(rows), np.int64)
    result[rows] = on[rows[source]]
    return result


def _connect(
    count: int, anchors: Anchors, previous: Ints, launcher: Ints, rows: Ints, stretches: Stretches,
    order: Order, crossings: Crossings, collectives: Ints,
) -> Graph:  # fmt: skip
    first = 1 + len(anchors)
    size = len(stretches.begin)
    node_of = np.empty(count, np.int64)
    node_of[rows] = first + stretches.of
    crossing = first + size
    collective = crossing + len(crossings.work)
    node_of[collectives] = np.arange(collective, collective + len(collectives))
    heads = rows[stretches.begin]  # the operation each stretch begins with
    hangs = _carried(rows, launcher, order)[heads]
    on_head = hangs <= -2
    hangs[on_head] = node_of[-2 - hangs[on_head]]
    before = order.before[heads]
    chained = np.where(before >= 0, node_of[before], 0)
    at = np.full(count, -1, np.int64)
    at[crossings.work] = np.arange(crossing, crossing + len(crossings.work))
    chained = np.where(at[heads] >= 0, at[heads], chained)
    total = collective + len(collectives)
    return Graph(
        anchors, previous, launcher, rows, stretches, hangs, chained, crossings, collectives, node_of, total
    )


def collective_kernels(timeline: Timeline) -> Bools:
    """Which operations are collectives' kernels."""
    names = timeline.names_where(
        lambda name: name.lower().startswith(("nccl", "rccl", "ncclkernel", "nccldev"))
    )
    found: Bools = names[timeline.work.name] | (timeline.work.group >= 0)
    return found
