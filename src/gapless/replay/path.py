"""What a replay's length is made of: the path of moments each of which set the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from gapless.replay.clock import Clock
from gapless.replay.host import LOADER, loader_rows
from gapless.replay.outcome import Outcome
from gapless.trace.timeline import Bools, Ints, distinct

Limiter = Literal["host", "device", "copies", "input", "peers"]

BUSY = 0.8
"""The share of the span from which on a working device is what limits: with waits in it, most of a span in
which the device idles a third of the time can still lie behind its work."""
BETWEEN = 2_200
"""Nanoseconds from one work to the next up to which the device does not idle: the next was queued."""


@dataclass(frozen=True)
class Path:
    """Nanoseconds of the span that the host, the device, copies between them, the input and collectives take
    one after another."""

    host: int
    device: int
    copies: int
    input: int
    peers: int

    @property
    def shares(self) -> dict[Limiter, int]:
        """All of them, by name."""
        return {
            "device": self.device, "copies": self.copies, "host": self.host, "input": self.input,
            "peers": self.peers,
        }  # fmt: skip


def limiter(outcome: Outcome) -> Limiter:
    """What limits the span: the device where it works nearly all of the time, else what takes the most of the
    critical path apart from its work."""
    shares = critical_path(outcome).shares
    longest = max(shares, key=lambda name: shares[name])
    if longest not in ("device", "host"):
        return longest
    if busy(outcome) >= BUSY:
        return "device"
    del shares["device"]
    return max(shares, key=lambda name: shares[name])


def busy(outcome: Outcome) -> float:
    """The share of the span in which any work of the device runs, or the next that is queued begins."""
    start, end = outcome.work_start, outcome.work_end
    if not outcome.span or not len(start):
        return 0.0
    order = np.argsort(start, kind="stable")
    first = outcome.model.timeline.span[0]
    reached = np.maximum.accumulate(np.concatenate([[first], end[order]]))
    idle = np.append(start[order], first + outcome.span) - reached
    return 1.0 - float(idle[idle > BETWEEN].sum()) / outcome.span


def critical_path(outcome: Outcome) -> Path:
    """What the span is made of, found by following what set each moment back from the end."""
    model, of = outcome.model, outcome.model.graph
    nodes, by_b = _walk(outcome)
    times = outcome.nodes
    a, b = model.edges.a[nodes], model.edges.b[nodes]
    moment, collective = nodes < of.first_stretch, nodes >= of.first_collective
    stretch = ~moment & (nodes < of.first_crossing)
    late = by_b & _own_clock(outcome)[nodes]
    took = times[nodes] - times[np.where(by_b & ~late, b, a)]
    device, copies, peers, launch = _device_part(outcome, nodes[stretch], took[stretch], by_b[stretch])
    on_device = int(device.sum() + took[~moment & ~stretch & ~collective].sum())
    with_peers = int(peers.sum() + took[collective].sum())
    # Host time up to a moment, and up to the launch that a stretch of work began with.
    host = moment & (~by_b | late)
    threads = [of.anchors.thread[nodes[host] - 1], _threads(outcome, launch)]
    starts = [a[host], of.hangs[nodes[stretch][~by_b[stretch]] - of.first_stretch]]
    ends = [of.anchors.arrive[nodes[host] - 1], model.launches.time[launch]]
    left = np.concatenate([[0], of.anchors.leave])[np.minimum(np.concatenate(starts), of.first_stretch - 1)]
    loading = _loading(outcome, np.concatenate(threads), left, np.concatenate(ends)) + int(
        took[late & moment].sum()
    )
    rest = outcome.span - on_device - with_peers - loading
    copied = int(copies.sum())
    return Path(max(rest, 0), on_device - copied, copied, loading, with_peers)


def _walk(outcome: Outcome) -> tuple[Ints, Bools]:
    """The nodes of the path and whether each was set by its second edge.

    A loader that was late, or peers that were, were set by a clock of their own: their whole time counts, and
    the path goes on with who came to wait for them.
    """
    model = outcome.model
    program, order = model.program, model.program.order
    _, to_b = program.arranged(outcome.weights.to_a, outcome.weights.to_b)
    time, (a, b) = outcome.nodes[order], program.edges
    by_b = time[b] + to_b >= time
    by_b[program.place[np.flatnonzero(outcome.removed) + 1]] = False
    following = np.where(by_b & ~_own_clock(outcome)[order], b, a).tolist()
    position = max(model.tails, key=lambda tail: outcome.time[tail[0]] + tail[1])[0]
    path: list[int] = []
    while position:
        path.append(position)
        position = following[position]
    at = np.array(path, np.int64)
    return order[at], by_b[at]


def _own_clock(outcome: Outcome) -> Bools:
    """The nodes whose second edge is a fixed time: late batches and peers."""
    of = outcome.model.graph
    own = np.zeros(of.count, bool)
    own[of.moments] = of.anchors.kind == LOADER
    own[of.peers] = True
    return own


def _device_part(outcome: Outcome, nodes: Ints, took: Ints, by_b: Bools) -> tuple[Ints, Ints, Ints, Ints]:
    """What device work, the copies between host and device in it and collectives account for in the time that
    each stretch took on the path; and, for stretches that a launch set, the device row that was launched."""
    of, weights = outcome.model.graph, outcome.weights
    stretch, begin = nodes - of.first_stretch, of.stretches.begin
    lead = weights.own - np.cumsum(weights.chained)
    at = np.flatnonzero(lead == np.maximum.reduceat(lead, begin)[of.stretches.of])
    critical = begin.copy()
    critical[of.stretches.of[at[::-1]]] = at[::-1]
    first = np.where(by_b, begin[stretch], critical[stretch])
    last = np.append(begin[1:], len(of.rows))[stretch]
    length = weights.length[of.rows]
    peer = np.zeros(len(length), bool)
    peer[of.collectives] = True
    total = np.concatenate([[0], np.cumsum(length)])
    shared = np.concatenate([[0], np.cumsum(np.where(peer[of.rows], length, 0))])
    peers = np.minimum(shared[last] - shared[first], took)
    device = np.minimum(total[last] - total[first], took) - peers
    device = np.where(by_b, took - peers, device)  # between kernels: the device's own
    kinds = outcome.model.links.copies
    over = np.where((kinds.to_device | kinds.to_host)[of.rows], length, 0)
    moved = np.concatenate([[0], np.cumsum(over)])
    return device, np.minimum(moved[last] - moved[first], device), peers, of.rows[first[~by_b]]


def _threads(outcome: Outcome, rows: Ints) -> Ints:
    """The thread that launched each device operation, -1 where none is known."""
    call = outcome.model.links.call[rows]
    return np.where(call >= 0, outcome.model.timeline.host.thread[call], -1)


def _loading(outcome: Outcome, threads: Ints, starts: Ints, ends: Ints) -> int:
    """How much of these stretches of threads (recorded times) was spent in a data loader."""
    timeline = outcome.model.timeline
    rows = loader_rows(timeline)
    if outcome.change.input_free:
        return 0
    total = 0
    for thread in distinct(timeline.host.thread[rows]).tolist():
        mine, on = rows[timeline.host.thread[rows] == thread], threads == thread
        loader = Clock.without(timeline.host.start[mine], timeline.host.end[mine])
        begin, end = starts[on], np.maximum(ends[on], starts[on])
        total += int((end - begin - loader.between(begin, end)).sum())
    return total
