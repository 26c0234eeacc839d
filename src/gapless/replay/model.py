"""`build`: a timeline as a model of what depends on what, to be replayed under changed assumptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from gapless.replay.change import NOTHING, Change, without
from gapless.replay.clock import Clock
from gapless.replay.dependences import Dependences
from gapless.replay.device import crossings, device_order
from gapless.replay.graph import collective_kernels, graph
from gapless.replay.host import anchors
from gapless.replay.latency import fit_launches, fit_returns, previous_on_stream
from gapless.replay.outcome import Outcome
from gapless.replay.program import NEVER, program
from gapless.replay.steps import steps
from gapless.replay.threads import active_threads
from gapless.replay.waits import links, waits
from gapless.replay.weights import Weights, edges, host_clock, removed, weights
from gapless.trace.timeline import Bools, Ints, Timeline

MANY = 12
"""From so many replays on they run together."""
TOGETHER = 8 << 20
"""Moments of replays that run together, at most: each takes eight bytes, and twice that for its weights."""


@dataclass(frozen=True)
class Refusal:
    """Why a timeline cannot be replayed."""

    reason: str


@dataclass(frozen=True)
class Model(Dependences):
    """What depends on what in a profile, to be replayed under changes."""

    def replay(self, change: Change = NOTHING) -> Outcome:
        """Runs the profile again under `change`."""
        if change.removes_only:
            of, (to_a, to_b) = self._unchanged, self._arranged
        else:
            of = self._weights(change)
            to_a, to_b = self.program.arranged(of.to_a, of.to_b)
        gone = removed(self.graph.anchors, self.marked(change.without))
        time = self.program.run(*self._without(gone, to_a, to_b, of.clock))
        return Outcome(self, change, of, gone, time)

    def span(self, rows: Iterable[int] = ()) -> int:
        """The span without the waits of these host rows, in nanoseconds; `replay` in short."""
        return self.spans()([self.marked(rows)])[0]

    def spans(self, change: Change = NOTHING) -> Callable[[Sequence[Bools]], list[int]]:
        """Gives the spans under `change` without each of some sets of waits, marked in `waits`."""
        of = self._unchanged if change == NOTHING else self._weights(change)
        to_a, to_b = self._arranged if change == NOTHING else self.program.arranged(of.to_a, of.to_b)
        start, anchors = self.timeline.span[0], self.graph.anchors

        def run(sets: Sequence[Bools]) -> list[int]:
            sets = [removed(anchors, marked) for marked in sets]
            if len(sets) >= MANY:
                return [
                    end - start
                    for part in _parts(sets, len(self.program.a))
                    for end in self._many(part, to_a, to_b, of.clock)
                ]
            runs = (self.program.run(*self._without(gone, to_a, to_b, of.clock)) for gone in sets)
            return [self.last(time) - start for time in runs]

        return run

    def changed(
        self, changes: Sequence[Change], sets: Sequence[Bools]
    ) -> Iterator[tuple[list[int], Outcome]]:
        """For each change the spans without each of some sets of waits, and the outcome without the first."""
        start = self.timeline.span[0]
        gone = [removed(self.graph.anchors, one) for one in sets]
        most = max(1, TOGETHER // (len(gone) * len(self.program.a)))
        for begin in range(0, len(changes), most):
            part = changes[begin : begin + most]
            found = [self._weights(change) for change in part]
            at = [(of, self.program.arranged(of.to_a, of.to_b)) for of in found]
            pairs = [self._without(one, *weights, of.clock) for of, weights in at for one in gone]
            to_a, to_b = (np.stack(columns, axis=1) for columns in zip(*pairs, strict=True))
            time = self.program.run_all(to_a, to_b)
            ends = np.max([time[position] + rest for position, rest in self.tails], axis=0) - start
            for number, (change, of) in enumerate(zip(part, found, strict=True)):
                own = ends[number * len(gone) : (number + 1) * len(gone)]
                first = time[:, number * len(gone)].tolist()
                yield own.tolist(), Outcome(self, change, of, gone[0], first)

    def marked(self, rows: Iterable[int]) -> Bools:
        """Which waits are meant by these host rows (of a copy or of its synchronize) and can be removed."""
        return self.meant(rows) & self.removable

    def meant(self, rows: Iterable[int]) -> Bools:
        """Which waits are meant by these host rows; rows that are no waits are passed over."""
        found = np.zeros(len(self.waits), bool)
        known = self._positions
        found[[known[row] for row in rows if row in known]] = True
        return found

    @cached_property
    def _positions(self) -> dict[int, int]:
        positions = {row: i for i, row in enumerate(self.waits.sync.tolist()) if row >= 0}
        positions.update((row, i) for i, row in enumerate(self.waits.host.tolist()))
        return positions

    def pinned(self, rows: Iterable[int] | None = None) -> Change:
        """Makes pinned and unblocking the copies from pageable host memory (of these rows; None: all)."""
        copies = self.links.copies
        of_copy = self.waits.copy >= 0
        copy = self.waits.copy[of_copy]
        wanted = np.zeros(len(self.waits), bool)
        wanted[of_copy] = copies.to_device[copy] & ~copies.pinned[copy]
        if rows is not None:
            wanted &= self.marked(rows)
        return without(self.waits.host[wanted & self.removable].tolist())

    @cached_property
    def _unchanged(self) -> Weights:
        return self._weights(NOTHING)

    @cached_property
    def _arranged(self) -> tuple[Ints, Ints]:
        return self.program.arranged(self._unchanged.to_a, self._unchanged.to_b)

    def _weights(self, change: Change) -> Weights:
        clock = host_clock(self.timeline, self.links, self.steps, change)
        return weights(self.timeline, self.graph, self.edges, self.launches, self.order, clock, change)

    def _without(self, gone: Bools, to_a: Ints, to_b: Ints, clock: Clock) -> tuple[Ints, Ints]:
        """The weights by position without these anchors."""
        if not gone.any():
            return to_a, to_b
        to_a, to_b = to_a.copy(), to_b.copy()
        rows = np.flatnonzero(gone)
        at = self.program.place[rows + 1]
        to_a[at] -= self._less(rows, clock)
        to_b[at] = NEVER
        return to_a, to_b

    def _less(self, rows: Ints, clock: Clock) -> Ints:
        """How much shorter the calls of these anchors are once they wait for nothing."""
        return clock.paced(self.graph.anchors.own[rows] - self.graph.anchors.bare[rows])

    def _many(self, sets: list[Bools], to_a: Ints, to_b: Ints, clock: Clock) -> list[int]:
        """The end of everything without each of these sets of anchors."""
        gone = np.stack(sets, axis=1)
        rows = np.flatnonzero(gone.any(axis=1))
        gone, at = gone[rows], self.program.place[rows + 1]
        less = self._less(rows, clock)
        a_there = to_a[at][:, None] - np.where(gone, less[:, None], 0)
        b_there = np.where(gone, NEVER, to_b[at][:, None])
        time = self.program.run_many(to_a, to_b, at, a_there, b_there)
        ends: list[int] = np.max([time[position] + rest for position, rest in self.tails], axis=0).tolist()
        return ends


def _parts(sets: list[Bools], nodes: int) -> Iterator[list[Bools]]:
    size = max(1, TOGETHER // nodes)
    for begin in range(0, len(sets), size):
        yield sets[begin : begin + size]


def build(timeline: Timeline, besides: Mapping[int, int] = MappingProxyType({})) -> Model | Refusal:
    """The model of a timeline, or why there is none. `besides` has for rows of the host what calls that wait
    do after that, in nanoseconds, where it is known: it goes with the wait."""
    if not len(timeline.work):
        return Refusal("the profile shows no work on a GPU")
    known = links(timeline)
    if not (known.call >= 0).any():
        return Refusal("no GPU work can be matched to the call that launched it")
    table = waits(timeline, known)
    threads = active_threads(timeline, known, table)
    before = previous_on_stream(known.stream)
    blocking = np.zeros(len(timeline.work), bool)
    blocking[table.copy[(table.copy >= 0) & table.blocks]] = True
    launches = fit_launches(timeline, known, before, blocking)
    order = device_order(timeline, known, before, launches)
    crossed = crossings(timeline, known, order, launches)
    order.released[crossed.work] = False  # another stream is the better explanation
    moments = anchors(timeline, known, table, fit_returns(timeline, known, table, besides), launches, threads)
    peers = np.flatnonzero(collective_kernels(timeline))
    of = graph(timeline, known, moments, launches, order, crossed, peers)
    at = edges(timeline, of, order)
    removable = (table.work >= 0) & ~table.final
    marked = steps(timeline, threads)
    ordered = program(at.a, at.b, at.when)
    return Model(timeline, table, removable, threads, marked, known, launches, order, of, at, ordered)
