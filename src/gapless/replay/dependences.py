"""`Dependences`: what depends on what in a profile, as `build` finds it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gapless.replay.device import Order
from gapless.replay.graph import Graph
from gapless.replay.latency import Launches
from gapless.replay.program import Program
from gapless.replay.steps import Steps
from gapless.replay.waits import Links, Waits
from gapless.replay.weights import Edges
from gapless.trace.columns import Bools
from gapless.trace.timeline import Timeline


@dataclass(frozen=True)
class Dependences:
    """What depends on what in a profile.

    `waits` are its waits; `removable` marks those that a change may remove: not the synchronize at the
    profiler's stop, and none whose work the profile does not show. `threads` are the host threads that launch
    work or wait for it.
    """

    timeline: Timeline
    waits: Waits
    removable: Bools
    threads: list[int]
    steps: Steps
    links: Links
    launches: Launches
    order: Order
    graph: Graph
    edges: Edges
    program: Program

    def last(self, time: list[int]) -> int:
        """The end of everything, given the time of each node."""
        return max(time[position] + rest for position, rest in self.tails)

    @property
    def recorded(self) -> int:
        """The span as recorded, in nanoseconds: of the threads in `threads` and of the device."""
        ends = [int(self.timeline.work.end.max())]
        return max([*ends, *self._thread_ends.values()]) - self.timeline.span[0]

    @cached_property
    def _thread_ends(self) -> dict[int, int]:
        rows = self.timeline.thread_rows
        return {t: int(self.timeline.host.end[slice(*rows[t])].max()) for t in self.threads}

    @cached_property
    def tails(self) -> list[tuple[int, int]]:
        """Where the span may end: positions of nodes and what follows them on their thread."""
        place, of = self.program.place, self.graph
        found: list[tuple[int, int]] = []
        for thread, end in self._thread_ends.items():
            mine = np.flatnonzero(of.anchors.thread == thread)
            node, left = (int(mine[-1]) + 1, int(of.anchors.leave[mine[-1]])) if len(mine) else (0, 0)
            found.append((int(place[node]), max(end - left, 0)))
        stream = self.links.stream[of.rows]
        last = of.rows[np.flatnonzero(np.append(stream[1:] != stream[:-1], True))]
        return found + [(int(place[of.node_of[row]]), 0) for row in last.tolist()]
