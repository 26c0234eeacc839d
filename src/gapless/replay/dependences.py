"""`Dependences`: what depends on what in a profile, as built by `build`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gapless.replay.device import DeviceOrder
from gapless.replay.graph import DependencyGraph
from gapless.replay.latency import LaunchTimes
from gapless.replay.program import Program
from gapless.replay.riders import Dropped, WaitMarks
from gapless.replay.steps import MarkedSteps
from gapless.replay.waits import LaunchLinks, WaitTable
from gapless.replay.weights import Edges
from gapless.trace.columns import Bools, Ints
from gapless.trace.timeline import Timeline


@dataclass(frozen=True)
class Dependences:
    """What depends on what in a profile.

    `waits` are its waits; `removable` marks those that a change may remove: not the synchronize when the
    profiler stops, and none whose work the profile does not show. `threads` are the host threads that launch
    work or wait for it. `marks` arranges marks of waits and riders, and `dropped` is the work that goes with
    riders.
    """

    timeline: Timeline
    waits: WaitTable
    removable: Bools
    threads: list[int]
    steps: MarkedSteps
    links: LaunchLinks
    launches: LaunchTimes
    order: DeviceOrder
    graph: DependencyGraph
    edges: Edges
    program: Program
    marks: WaitMarks
    dropped: Dropped

    def last(self, time: Sequence[int] | Ints) -> int:
        """Return the end of the run, given the time of each node."""
        return int(max(time[position] + rest for position, rest in self.tails))

    @property
    def recorded(self) -> int:
        """The recorded span of `threads` and of the device, in nanoseconds."""
        ends = [int(self.timeline.work.end.max())]
        return max([*ends, *self._thread_ends.values()]) - self.timeline.span[0]

    @cached_property
    def _thread_ends(self) -> dict[int, int]:
        rows = self.timeline.thread_rows
        return {t: int(self.timeline.host.end[slice(*rows[t])].max()) for t in self.threads}

    @cached_property
    def tails(self) -> list[tuple[int, int]]:
        """The nodes at which the run may end, as positions, with the time that follows on their thread."""
        place, graph = self.program.place, self.graph
        ends: list[tuple[int, int]] = []
        for thread, end in self._thread_ends.items():
            mine = np.flatnonzero(graph.anchors.thread == thread)
            node, left = (int(mine[-1]) + 1, int(graph.anchors.leave[mine[-1]])) if len(mine) else (0, 0)
            ends.append((int(place[node]), max(end - left, 0)))
        stream = self.links.stream[graph.rows]
        last = graph.rows[np.flatnonzero(np.append(stream[1:] != stream[:-1], True))]
        return ends + [(int(place[graph.node_of[row]]), 0) for row in last.tolist()]
