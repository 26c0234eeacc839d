"""What a replay's length is made of: the path of moments each of which set the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from gapless.replay.host import LOADER
from gapless.trace.timeline import Ints

if TYPE_CHECKING:
    from gapless.replay.outcome import Outcome

Limiter = Literal["host", "device", "input", "peers"]


@dataclass(frozen=True)
class Path:
    """Nanoseconds of the span that the host, the device, the input and collectives take, one after another."""

    host: int
    device: int
    input: int
    peers: int

    @property
    def limiter(self) -> Limiter:
        """What takes the most."""
        shares: dict[Limiter, int] = {
            "device": self.device, "host": self.host, "input": self.input, "peers": self.peers
        }  # fmt: skip
        return max(shares, key=lambda name: shares[name])


def critical_path(outcome: Outcome) -> Path:
    """Follows what set each moment back from the end."""
    model, of = outcome.model, outcome.model.graph
    nodes, by_b = _walk(outcome)
    times = outcome.nodes
    before = np.where(by_b, model.edges.b[nodes], model.edges.a[nodes])
    took = times[nodes] - times[before]
    moment = nodes < of.first_stretch
    stretch = (nodes >= of.first_stretch) & (nodes < of.first_crossing)
    device, peers = _device_part(outcome, nodes[stretch] - of.first_stretch, took[stretch], by_b[stretch])
    late = np.zeros(len(nodes), bool)
    late[moment] = (of.anchors.kind[nodes[moment] - 1] == LOADER) & by_b[moment]
    collective = nodes >= of.first_collective
    crossing = (nodes >= of.first_crossing) & ~collective
    waiting = int(took[late].sum())
    total_device = int(device.sum()) + int(took[crossing].sum())
    total_peers = int(peers.sum()) + int(took[collective].sum())
    loading = waiting + _loading(outcome, nodes[moment & ~by_b])
    host = outcome.span - total_device - total_peers - loading
    return Path(max(host, 0), total_device, loading, total_peers)


def _walk(outcome: Outcome) -> tuple[Ints, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]]:
    """The nodes of the path and whether each was set by its second edge.

    A loader that was late, or peers that were, were set by a clock of their own: their whole time counts, and
    the path goes on with who came to wait for them.
    """
    model = outcome.model
    program, time = model.program, outcome.time
    order = program.order
    to_a, to_b = program.arranged(outcome.weights.to_a, outcome.weights.to_b)
    position = max(model.tails, key=lambda tail: time[tail[0]] + tail[1])[0]
    nodes: list[int] = []
    second: list[bool] = []
    gone = {int(program.place[row + 1]) for row in np.flatnonzero(outcome.removed)}
    while position:
        b = program.b[position]
        by_b = position not in gone and time[b] + to_b[position] >= time[position]
        nodes.append(int(order[position]))
        second.append(by_b)
        position = b if by_b and b else program.a[position]
    return np.array(nodes, np.int64), np.array(second, bool)


def _device_part(outcome: Outcome, stretch: Ints, took: Ints, by_b: Ints) -> tuple[Ints, Ints]:
    """Of the time that each stretch took on the path, what its device work and its collectives account for."""
    of, weights = outcome.model.graph, outcome.weights
    length = weights.length[of.rows]
    along = weights.chained.cumsum()
    ends = np.append(of.stretches.begin[1:], len(of.rows))
    critical = of.stretches.begin.copy()
    lead = weights.own - along
    best = np.maximum.reduceat(lead, of.stretches.begin)
    at = np.flatnonzero(lead == best[of.stretches.of])
    critical[of.stretches.of[at[::-1]]] = at[::-1]
    first = np.where(by_b, of.stretches.begin[stretch], critical[stretch])
    last = ends[stretch]
    total = np.concatenate([[0], np.cumsum(length)])
    is_peer = np.zeros(len(weights.length), bool)
    is_peer[of.collectives] = True
    shared = np.concatenate([[0], np.cumsum(np.where(is_peer[of.rows], length, 0))])
    peers = np.minimum(shared[last] - shared[first], took)
    device = np.minimum(total[last] - total[first], took) - peers
    gaps = np.where(by_b, took - device - peers, 0)  # between kernels: the device's own
    return device + gaps, peers


def _loading(outcome: Outcome, nodes: Ints) -> int:
    """Host time on the path that was spent in a data loader of the same thread."""
    from gapless.replay.host import loader_rows

    model = outcome.model
    rows = loader_rows(model.timeline)
    if outcome.change.input_free or not len(rows) or not len(nodes):
        return 0
    host, anchors = model.timeline.host, model.graph.anchors
    total = 0
    left = np.concatenate([[0], anchors.leave])
    for thread in np.unique(host.thread[rows]).tolist():
        mine = rows[host.thread[rows] == thread]
        ends = np.concatenate([[0], np.cumsum(host.end[mine] - host.start[mine])])
        on = nodes[anchors.thread[nodes - 1] == thread]

        def spent(times: Ints, starts: Ints = host.start[mine], stops: Ints = host.end[mine],
                  ends: Ints = ends) -> Ints:  # fmt: skip
            at = np.searchsorted(starts, times, side="right")
            over = np.maximum(stops[np.maximum(at - 1, 0)] - times, 0)
            return np.where(at > 0, ends[at] - over, 0)

        total += int((spent(anchors.arrive[on - 1]) - spent(left[model.edges.a[on]])).clip(0).sum())
    return total
