"""Find the critical path of a replay: the moments that each set the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from gapless.replay.clock import HostClock
from gapless.replay.host import LOADER, loader_rows
from gapless.replay.outcome import ReplayOutcome
from gapless.replay.program import NO_EDGE
from gapless.trace.timeline import Bools, Ints, distinct

Limiter = Literal["host", "device", "copies", "input", "peers"]

MIN_BUSY_SHARE = 0.8
"""The share of the span from which on a working device is the limit: with waits in it, most of a span in
which the device idles a third of the time can still lie behind its work.
"""
MAX_QUEUE_GAP_NS = 2_200
"""Up to this time between two operations, or up to that between queued ones in the profile if it is longer,
the device does not idle: the second was queued."""


@dataclass(frozen=True)
class CriticalPath:
    """Nanoseconds of the span that the host, the device, copies between them, the input and collectives take
    one after another.
    """

    host: int
    device: int
    copies: int
    input: int
    peers: int

    @property
    def shares(self) -> dict[Limiter, int]:
        """All parts by name."""
        return {
            "device": self.device, "copies": self.copies, "host": self.host, "input": self.input,
            "peers": self.peers,
        }  # fmt: skip


def find_limiter(outcome: ReplayOutcome) -> Limiter:
    """Return what limits the span: the device if it works nearly all the time, else the longest other part of
    the critical path.
    """
    busy = busy_share(outcome) >= MIN_BUSY_SHARE
    sure = _limiter_by_bounds(outcome, busy)
    if sure is not None:
        return sure
    shares = critical_path(outcome).shares
    longest = max(shares, key=lambda name: shares[name])
    if longest not in ("device", "host"):
        return longest
    if busy:
        return "device"
    del shares["device"]
    return max(shares, key=lambda name: shares[name])


def _limiter_by_bounds(outcome: ReplayOutcome, busy: bool) -> Limiter | None:
    """Return the limiter where bounds on the critical path's parts leave only one: following it takes several
    times as long. `busy` is whether the device works nearly all the time.
    """
    model, length = outcome.model, outcome.weights.length
    graph, kinds = model.graph, model.links.copies
    if len(graph.crossings.work) or len(graph.collectives) or len(loader_rows(model.timeline)):
        return None
    copied = int(length[kinds.to_device | kinds.to_host].sum())
    if busy:
        # with no more than these three, the device or the host has a third of the path
        return "device" if 3 * copied < outcome.span else None
    on_device = int(np.maximum(outcome.weights.chained, length[graph.rows]).sum())
    return "host" if outcome.span - on_device > copied else None


def busy_share(outcome: ReplayOutcome) -> float:
    """Return the share of the span in which the device works, or is about to begin queued work."""
    start, end = outcome.work_start, outcome.work_end
    if not outcome.span or not len(start):
        return 0.0
    order = np.argsort(start, kind="stable")
    first = outcome.model.timeline.span[0]
    reached = np.maximum.accumulate(np.concatenate([[first], end[order]]))
    idle = np.append(start[order], first + outcome.span) - reached
    queued = np.append(outcome.model.launches.gap[order], 0)
    return 1.0 - float(idle[idle > np.maximum(queued, MAX_QUEUE_GAP_NS)].sum()) / outcome.span


def critical_path(outcome: ReplayOutcome) -> CriticalPath:
    """Divide the span into parts by following, from its end, what set each moment."""
    model, graph = outcome.model, outcome.model.graph
    nodes, by_b = _walk_path(outcome)
    times = outcome.nodes
    a, b = model.edges.a[nodes], model.edges.b[nodes]
    moment, collective = nodes < graph.first_stretch, nodes >= graph.first_collective
    stretch = ~moment & (nodes < graph.first_crossing)
    late = by_b & _has_own_clock(outcome)[nodes]
    took = times[nodes] - times[np.where(by_b & ~late, b, a)]
    device, copies, peers, launch = _split_device_time(outcome, nodes[stretch], took[stretch], by_b[stretch])
    on_device = int(device.sum() + took[~moment & ~stretch & ~collective].sum())
    with_peers = int(peers.sum() + took[collective].sum())
    # host time up to a moment, and up to the launch with which a stretch of work began
    host = moment & (~by_b | late)
    threads = [graph.anchors.thread[nodes[host] - 1], _launching_threads(outcome, launch)]
    starts = [a[host], graph.hangs[nodes[stretch][~by_b[stretch]] - graph.first_stretch]]
    ends = [graph.anchors.arrive[nodes[host] - 1], model.launches.time[launch]]
    left = np.concatenate([[0], graph.anchors.leave])[
        np.minimum(np.concatenate(starts), graph.first_stretch - 1)
    ]
    loading = _loading_time(outcome, np.concatenate(threads), left, np.concatenate(ends)) + int(
        took[late & moment].sum()
    )
    rest = outcome.span - on_device - with_peers - loading
    copied = int(copies.sum())
    return CriticalPath(max(rest, 0), on_device - copied, copied, loading, with_peers)


def _walk_path(outcome: ReplayOutcome) -> tuple[Ints, Bools]:
    """Return the nodes of the critical path, and whether each was set by its second edge.

    A late loader, or late peers, have a clock of their own: their whole time counts, and the path continues
    with the thread that waited for them.
    """
    model = outcome.model
    program, order = model.program, model.program.order
    to_b = np.where(program.cut_b, NO_EDGE, outcome.weights.to_b)[order]
    time, (a, b) = np.asarray(outcome.time), program.edges
    by_b = time[b] + to_b >= time
    by_b[program.place[np.flatnonzero(outcome.removed) + 1]] = False
    following = np.where(by_b & ~_has_own_clock(outcome)[order], b, a).tolist()
    position = max(model.tails, key=lambda tail: outcome.time[tail[0]] + tail[1])[0]
    path: list[int] = []
    while position:
        path.append(position)
        position = following[position]
    at = np.array(path, np.int64)
    return order[at], by_b[at]


def _has_own_clock(outcome: ReplayOutcome) -> Bools:
    """Mark the nodes whose second edge is a fixed time: late batches and peers."""
    graph = outcome.model.graph
    own = np.zeros(graph.count, bool)
    own[graph.moments] = graph.anchors.kind == LOADER
    own[graph.peers] = True
    return own


def _split_device_time(
    outcome: ReplayOutcome, nodes: Ints, took: Ints, by_b: Bools
) -> tuple[Ints, Ints, Ints, Ints]:
    """Divide the time of each stretch on the path into device work, copies between host and device within it,
    and collectives; also return the device row launched, for stretches set by a launch.
    """
    graph, weights = outcome.model.graph, outcome.weights
    stretch, begin = nodes - graph.first_stretch, graph.stretches.begin
    lead = weights.own - np.cumsum(weights.chained)
    at = np.flatnonzero(lead == np.maximum.reduceat(lead, begin)[graph.stretches.stretch_of])
    critical = begin.copy()
    critical[graph.stretches.stretch_of[at[::-1]]] = at[::-1]
    first = np.where(by_b, begin[stretch], critical[stretch])
    last = np.append(begin[1:], len(graph.rows))[stretch]
    length = weights.length[graph.rows]
    peer = np.zeros(len(length), bool)
    peer[graph.collectives] = True
    total = np.concatenate([[0], np.cumsum(length)])
    shared = np.concatenate([[0], np.cumsum(np.where(peer[graph.rows], length, 0))])
    peers = np.minimum(shared[last] - shared[first], took)
    device = np.minimum(total[last] - total[first], took) - peers
    device = np.where(by_b, took - peers, device)  # gaps between kernels count as the device's
    kinds = outcome.model.links.copies
    over = np.where((kinds.to_device | kinds.to_host)[graph.rows], length, 0)
    moved = np.concatenate([[0], np.cumsum(over)])
    return device, np.minimum(moved[last] - moved[first], device), peers, graph.rows[first[~by_b]]


def _launching_threads(outcome: ReplayOutcome, rows: Ints) -> Ints:
    """Return the thread that launched each device operation; -1 if unknown."""
    call = outcome.model.links.call[rows]
    return np.where(call >= 0, outcome.model.timeline.host.thread[call], -1)


def _loading_time(outcome: ReplayOutcome, threads: Ints, starts: Ints, ends: Ints) -> int:
    """Return how much of these intervals of threads (recorded times) was spent in a data loader."""
    timeline = outcome.model.timeline
    rows = loader_rows(timeline)
    if outcome.change.input_free:
        return 0
    total = 0
    for thread in distinct(timeline.host.thread[rows]).tolist():
        mine, on = rows[timeline.host.thread[rows] == thread], threads == thread
        loader = HostClock.without(timeline.host.start[mine], timeline.host.end[mine])
        begin, end = starts[on], np.maximum(ends[on], starts[on])
        total += int((end - begin - loader.between(begin, end)).sum())
    return total
