"""`build`: turn a timeline into a model of dependences that can be replayed under changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from gapless.replay.change import NO_CHANGE, ReplayChange, remove_waits
from gapless.replay.clock import HostClock
from gapless.replay.dependences import Dependences
from gapless.replay.device import find_crossings, order_work
from gapless.replay.graph import build_graph, find_collectives
from gapless.replay.host import find_anchors
from gapless.replay.latency import fit_launches, fit_returns, previous_on_stream
from gapless.replay.outcome import ReplayOutcome
from gapless.replay.program import NO_EDGE, PositionRows, Removed, order_nodes
from gapless.replay.riders import Dropped, Rider, WaitMarks, add_riders, work_of_riders
from gapless.replay.steps import find_steps
from gapless.replay.threads import active_threads
from gapless.replay.waits import find_links, find_waits, wait_positions
from gapless.replay.weights import Weights, compute_weights, find_edges, host_clock, removed_anchors
from gapless.trace.timeline import Bools, Ints, Timeline

MIN_RUNS_TOGETHER = 4
"""From this many replays on, they run together."""
MAX_MOMENTS_TOGETHER = 8 << 20
"""Moments held of replays that run together: each takes eight bytes."""


@dataclass(frozen=True)
class ReplayRefusal:
    """Why a timeline cannot be replayed."""

    reason: str


@dataclass(frozen=True)
class ReplayModel(Dependences):
    """The dependences of a profile, to be replayed under changes."""

    def replay(self, change: ReplayChange = NO_CHANGE) -> ReplayOutcome:
        """Replay the profile under `change`."""
        if change.removes_only:
            weights, (to_a, to_b) = self._recorded_weights, self._recorded_positions
        else:
            weights = self._weights(change)
            to_a, to_b = self.program.by_position(weights.to_a, weights.to_b)
        marks = self.marked(change.without)
        time = self.program.run(*self._without(marks, to_a, to_b, weights.clock))
        return ReplayOutcome(self, change, weights, removed_anchors(self.graph.anchors, marks), time)

    def span(self, rows: Iterable[int] = ()) -> int:
        """Return the span without the waits of these host rows, in nanoseconds; a shortcut of `replay`."""
        return self.spans()([self.marked(rows)])[0]

    def spans(self, change: ReplayChange = NO_CHANGE) -> Callable[[Sequence[Bools]], list[int]]:
        """Return a function from sets of waits (marked as by `marked`) to the spans under `change` without
        each.
        """
        weights = self._recorded_weights if change == NO_CHANGE else self._weights(change)
        to_a, to_b = (
            self._recorded_positions
            if change == NO_CHANGE
            else self.program.by_position(weights.to_a, weights.to_b)
        )
        start = self.timeline.span[0]

        def run(sets: Sequence[Bools]) -> list[int]:
            if len(sets) >= MIN_RUNS_TOGETHER:
                columns = to_a[:, None], to_b[:, None]
                parts = self._batches_of(sets, 1)
                ends = [self._ends_without(part, *columns, [weights.clock])[:, 0] for part in parts]
                spans: list[int] = (np.concatenate(ends) - start).tolist()
                return spans
            runs = (self.program.run(*self._without(marks, to_a, to_b, weights.clock)) for marks in sets)
            return [self.last(time) - start for time in runs]

        return run

    def changed(
        self, changes: Sequence[ReplayChange], sets: Sequence[Bools]
    ) -> Iterator[tuple[list[int], ReplayOutcome]]:
        """Yield for each change the spans without each of some sets of waits, and the outcome without any
        removed.
        """
        start = self.timeline.span[0]
        none = np.zeros(len(self.graph.anchors), bool)
        most = max(1, MAX_MOMENTS_TOGETHER // len(self.program.a))
        for begin in range(0, len(changes), most):
            part = changes[begin : begin + most]
            weights_of = [self._weights(change) for change in part]
            to_a, to_b = self.program.by_position(
                np.stack([weights.to_a for weights in weights_of], axis=1),
                np.stack([weights.to_b for weights in weights_of], axis=1),
            )
            clocks = [weights.clock for weights in weights_of]
            times = np.ascontiguousarray(self.program.run_changes(to_a, to_b).T)
            batches = self._batches_of(sets, len(part))
            ends = (
                np.concatenate([self._ends_without(batch, to_a, to_b, clocks) for batch in batches]) - start
            )
            for number, (change, weights) in enumerate(zip(part, weights_of, strict=True)):
                outcome = ReplayOutcome(self, change, weights, none, times[number])
                yield ends[:, number].tolist(), outcome

    def marked(self, rows: Iterable[int]) -> Bools:
        """Mark the waits of these host rows (of a copy or its synchronize) that can be removed, with what
        certainly goes with them.
        """
        return self.marks.with_certain(self.waits_of_rows(rows) & self.removable)

    def waits_of_rows(self, rows: Iterable[int]) -> Bools:
        """Mark the waits of these host rows; other rows are ignored."""
        marks = np.zeros(len(self.waits), bool)
        positions = self._positions
        marks[[positions[row] for row in rows if row in positions]] = True
        return marks

    @cached_property
    def _positions(self) -> dict[int, int]:
        return wait_positions(self.waits)

    def pinned(self, rows: Iterable[int] | None = None) -> ReplayChange:
        """Return the change that makes copies from pageable host memory pinned and non-blocking (of `rows`;
        None: all).
        """
        copies = self.links.copies
        of_copy = self.waits.copy >= 0
        copy = self.waits.copy[of_copy]
        wanted = np.zeros(len(self.waits), bool)
        wanted[of_copy] = copies.to_device[copy] & ~copies.pinned[copy]
        if rows is not None:
            wanted &= self.waits_of_rows(rows)
        return remove_waits(self.waits.host[wanted & self.removable].tolist())

    @cached_property
    def _recorded_weights(self) -> Weights:
        return self._weights(NO_CHANGE)

    @cached_property
    def _recorded_positions(self) -> tuple[Ints, Ints]:
        return self.program.by_position(self._recorded_weights.to_a, self._recorded_weights.to_b)

    def _weights(self, change: ReplayChange) -> Weights:
        clock = host_clock(self.timeline, self.links, self.steps, change)
        return compute_weights(
            self.timeline, self.graph, self.edges, self.launches, self.order, clock, change
        )

    def _without(self, marks: Bools, to_a: Ints, to_b: Ints, clock: HostClock) -> tuple[Ints, Ints]:
        """Return the weights by position without these waits and riders."""
        if not marks.any():
            return to_a, to_b
        to_a, to_b = to_a.copy(), to_b.copy()
        rows = np.flatnonzero(removed_anchors(self.graph.anchors, marks))
        at = self.program.place[rows + 1]
        to_a[at] -= self._time_saved(rows, clock)
        to_b[at] = NO_EDGE
        passed = self._dropped_places[marks[self.dropped.mark]]
        to_a[passed], to_b[passed] = NO_EDGE, 0  # its stream goes on when the work before it has ended
        return to_a, to_b

    @cached_property
    def _dropped_places(self) -> Ints:
        """The positions of the device work that goes with riders."""
        return self.program.place[self.graph.node_of[self.dropped.work]]

    def _time_saved(self, rows: Ints, clock: HostClock) -> Ints:
        """Return how much shorter the calls of these anchors are once they wait for nothing."""
        return clock.scale(self.graph.anchors.own[rows] - self.graph.anchors.bare[rows])

    @cached_property
    def _rows(self) -> PositionRows:
        return self.program.share_rows([position for position, _ in self.tails])

    def _batches_of(self, sets: Sequence[Bools], changes: int) -> Iterator[Sequence[Bools]]:
        """Yield parts of `sets` whose moments and marks fit in memory."""
        each = max(self._rows.count * changes, len(self.marks.none()) // 8, 1)
        size = max(1, MAX_MOMENTS_TOGETHER // each)
        for begin in range(0, len(sets), size):
            yield sets[begin : begin + size]

    def _ends_without(
        self, sets: Sequence[Bools], to_a: Ints, to_b: Ints, clocks: Sequence[HostClock]
    ) -> Ints:
        """Return the end of the run without each of these sets of waits, sets by changes. The weights by
        position and the clocks are those of the changes.
        """
        gone: Bools = np.stack(sets, axis=1)
        wait = self.graph.anchors.wait
        some = np.flatnonzero(np.logical_or.reduce(sets))
        rows = np.flatnonzero(np.isin(wait, some))
        less = np.stack([self._time_saved(rows, clock) for clock in clocks], axis=1)
        passed = np.isin(self.dropped.mark, some)
        at = self._dropped_places[passed]
        removed = Removed(
            np.concatenate([self.program.place[rows + 1], at]),
            np.concatenate([wait[rows], self.dropped.mark[passed]]),
            gone,
            np.concatenate([less, np.broadcast_to(to_b[at], (len(at), len(clocks)))]),
            np.arange(len(rows) + len(at)) >= len(rows),
        )
        times = self.program.run_sets(to_a, to_b, removed, self._rows)
        rest = np.array([after for _, after in self.tails])[:, None, None]
        ends: Ints = (times + rest).max(axis=0)
        return ends


def build(
    timeline: Timeline, besides: Mapping[int, int] = MappingProxyType({}), riders: Sequence[Rider] = ()
) -> ReplayModel | ReplayRefusal:
    """Build the model of a timeline, or return why that is impossible. `besides` maps host rows of waiting
    calls to the nanoseconds they spend after the wait, if known; these and `riders` go with the wait.
    """
    if not len(timeline.work):
        return ReplayRefusal("the profile shows no work on a GPU")
    links = find_links(timeline)
    if not (links.call >= 0).any():
        return ReplayRefusal("no GPU work can be matched to the call that launched it")
    table = find_waits(timeline, links)
    threads = active_threads(timeline, links, table)
    before = previous_on_stream(links.stream)
    blocking = np.zeros(len(timeline.work), bool)
    blocking[table.copy[(table.copy >= 0) & table.blocks]] = True
    launches = fit_launches(timeline, links, before, blocking)
    order = order_work(timeline, links, before, launches)
    crossed = find_crossings(timeline, links, order, launches)
    order.released[crossed.work] = False  # another stream explains it better
    moments = find_anchors(
        timeline, links, table, fit_returns(timeline, links, table, besides), launches, threads
    )
    peers = np.flatnonzero(find_collectives(timeline))
    dropped = Dropped()
    if riders:
        at = wait_positions(table)
        moments = add_riders(moments, riders, at, len(table))
        dropped = work_of_riders(riders, moments, at, len(table), order, crossed, peers)
        order.alone[dropped.work] = True
    graph = build_graph(timeline, links, moments, launches, order, crossed, peers)
    node_edges = find_edges(timeline, graph, order)
    removable = (table.work >= 0) & ~table.final
    marked = find_steps(timeline, threads)
    ordered = order_nodes(node_edges.a, node_edges.b, node_edges.when)
    return ReplayModel(
        timeline, table, removable, threads, marked, links, launches, order, graph, node_edges, ordered,
        WaitMarks(len(table), bool(riders)), dropped,
    )  # fmt: skip
