"""`ReplayOutcome`: the times that a replay results in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gapless.replay.change import ReplayChange
from gapless.replay.dependences import Dependences
from gapless.replay.graph import last_anchor
from gapless.replay.host import WAIT
from gapless.replay.weights import Weights
from gapless.trace.timeline import Bools, Ints


@dataclass(frozen=True)
class ReplayOutcome:
    """A replay of `model` under `change`. All times are nanoseconds since the first event of the profile."""

    model: Dependences
    change: ReplayChange
    weights: Weights
    removed: Bools
    time: Sequence[int] | Ints

    @property
    def span(self) -> int:
        """The time from the first event to the end of the run."""
        return self.model.last(self.time) - self.model.timeline.span[0]

    @cached_property
    def nodes(self) -> Ints:
        """The time of every node of the model's graph."""
        times: Ints = np.asarray(self.time, np.int64)[self.model.program.place]
        return times

    @cached_property
    def work_end(self) -> Ints:
        """The end of every device operation, by row."""
        graph = self.model.graph
        ends = graph.stretches.unfold(
            self.weights.own, self.weights.chained, self.nodes[graph.hangs], self.nodes[graph.chained]
        )
        result = np.empty(len(ends), np.int64)
        result[graph.rows] = ends
        result[graph.collectives] = self.nodes[graph.peers]
        return result

    @property
    def work_start(self) -> Ints:
        """The start of every device operation, by row."""
        starts: Ints = self.work_end - self.weights.length
        if self.change.collectives == "end":
            graph = self.model.graph
            starts[graph.collectives] = self.nodes[self.model.edges.a[graph.peers]]
            starts[graph.collectives] -= self.weights.length[graph.collectives]
        return starts

    @cached_property
    def arrivals(self) -> Ints:
        """When the host arrives at each of the model's anchors (`DependencyGraph.anchors`)."""
        graph = self.model.graph
        left = np.concatenate([[0], graph.anchors.leave])[graph.previous]
        between = self.weights.clock.between(left, np.maximum(graph.anchors.arrive, left))
        times: Ints = self.nodes[graph.previous] + between
        return times

    @cached_property
    def stays(self) -> Ints:
        """How long the host stays in each of the model's anchors."""
        stays: Ints = self.nodes[self.model.graph.moments] - self.arrivals
        return stays

    @cached_property
    def blocked(self) -> Ints:
        """How long the host is in each wait of `ReplayModel.waits`; of a removed wait its launch remains."""
        anchors = self.model.graph.anchors
        of_wait = anchors.kind == WAIT
        result = np.zeros(len(self.model.waits), np.int64)
        np.add.at(result, anchors.wait[of_wait], self.stays[of_wait])
        return result

    def at(self, thread: int, times: Ints) -> Ints:
        """Return when `thread` reaches the state it had at these recorded times."""
        anchors = self.model.graph.anchors
        node = last_anchor(anchors, np.full(len(times), thread), times)
        left = np.concatenate([[0], anchors.leave])[node]
        moved: Ints = self.nodes[node] + self.weights.clock.between(left, np.maximum(times, left))
        return moved

    @property
    def steps(self) -> Ints:
        """The length of each step of `ReplayModel.steps`, on the host."""
        steps = self.model.steps
        lengths: Ints = self.at(steps.thread, steps.end) - self.at(steps.thread, steps.start)
        return lengths
