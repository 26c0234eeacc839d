"""Compute longest paths: every moment is the later of two earlier moments, each plus a fixed time.

A *node* is a moment: the end of a stretch of device work, the end of a wait, a thread that continues. Its
time is ``max(time[a] + to_a, time[b] + to_b)``; node 0 is the beginning of the profile. The order is fixed
and times are integer nanoseconds, so a replay is one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gapless.trace.timeline import Bools, Ints

NO_EDGE = -(1 << 50)
"""The weight of a missing edge."""
_TIE_BITS = 8
"""Bits that order nodes of the same nanosecond."""


@dataclass(frozen=True)
class Program:
    """Nodes in an order in which every node comes after both it depends on.

    `order` lists the nodes by position and `place` gives the position of each; `a` and `b` are positions.
    `cut_a` and `cut_b` mark, by node, edges that are left out.
    """

    order: Ints
    place: Ints
    a: list[int]
    b: list[int]
    cut_a: Bools
    cut_b: Bools

    @property
    def edges_cut(self) -> int:
        """The number of edges left out."""
        return int(self.cut_a.sum() + self.cut_b.sum())

    @cached_property
    def edges(self) -> tuple[Ints, Ints]:
        """`a` and `b` as arrays."""
        return np.array(self.a, np.int64), np.array(self.b, np.int64)

    def by_position(self, to_a: Ints, to_b: Ints) -> tuple[Ints, Ints]:
        """Arrange weights given by node, one or several for each, by position."""
        to_a, to_b = to_a[self.order], to_b[self.order]
        to_a[self.cut_a[self.order]] = to_b[self.cut_b[self.order]] = NO_EDGE
        return to_a, to_b

    def run(self, to_a: Ints, to_b: Ints) -> list[int]:
        """Return the time of every node by position, from weights by position."""
        time: list[int] = [0]
        push = time.append
        edges = zip(self.a, to_a.tolist(), self.b, to_b.tolist(), strict=True)
        next(edges)
        for a, after_a, b, after_b in edges:
            x = time[a] + after_a
            y = time[b] + after_b
            push(x if x > y else y)
        return time

    def run_changes(self, to_a: Ints, to_b: Ints) -> Ints:
        """Return the times of many runs, each with weights of its own: positions by runs, like the
        weights.
        """
        time = np.zeros(to_a.shape, np.int64)
        rows: list[Any] = list(time)
        x, y = np.empty_like(time[0]), np.empty_like(time[0])
        add, maximum = np.add, np.maximum
        edges = zip(rows, self.a, to_a, self.b, to_b, strict=True)
        next(edges)
        for row, a, after_a, b, after_b in edges:
            add(rows[a], after_a, out=x)
            add(rows[b], after_b, out=y)
            maximum(x, y, out=row)
        return time

    def run_sets(self, to_a: Ints, to_b: Ints, removed: Removed, rows: PositionRows) -> Ints:
        """Return the times at the positions that `rows` keeps, under every change without every set of waits:
        positions by sets by changes. The weights are positions by changes.
        """
        shape = (removed.sets, to_a.shape[1])
        held = np.empty((rows.count, *shape), np.int64)
        held[rows.of_position[0]] = 0
        buffers: list[Any] = list(held if shape[1] > 1 else held[:, :, 0])
        time = [buffers[row] for row in rows.of_position]
        x, y = np.empty_like(time[0]), np.empty_like(time[0])
        add, maximum, subtract = np.add, np.maximum, np.subtract
        gone, less, along = removed.by_position(len(time))
        edges = zip(time, self.a, _columns(to_a), self.b, _columns(to_b), gone, less, along, strict=True)
        next(edges)
        for row, a, after_a, b, after_b, without, shorter, by_b in edges:
            add(time[a], after_a, out=x)
            add(time[b], after_b, out=y)
            maximum(x, y, out=row)
            if without is not None:
                subtract(y if by_b else x, shorter, out=row, where=without)
        return held[[rows.of_position[position] for position in rows.kept]]

    def share_rows(self, kept: Sequence[int]) -> PositionRows:
        """Let the times of positions that are not needed at once share a row; those of `kept` stay."""
        edges = list(zip(self.a, self.b, strict=True))
        last_use = list(range(len(edges)))
        for position, (a, b) in enumerate(edges):
            last_use[a] = last_use[b] = position
        for position in kept:
            last_use[position] = len(edges)
        of_position: list[int] = []
        free: list[int] = []
        count = 0
        for position, (a, b) in enumerate(edges):
            # both times are read before this one is written
            free.extend(of_position[used] for used in {a, b} if used < position == last_use[used])
            if not free:
                free.append(count)
                count += 1
            of_position.append(free.pop())
            if last_use[position] == position:
                free.append(of_position[position])
        return PositionRows(of_position, count, tuple(kept))


@dataclass(frozen=True)
class PositionRows:
    """The row of each position in a table of `count` rows; those of `kept` are never used again."""

    of_position: list[int]
    count: int
    kept: tuple[int, ...]


@dataclass(frozen=True)
class Removed:
    """Sets of waits left out: at each position `at`, the number of its wait, a row of `gone` (waits by sets),
    and how much `less` it takes without the wait (positions by changes): after its first edge, or after its
    second one where it is `along`.
    """

    at: Ints
    wait: Ints
    gone: Bools
    less: Ints
    along: Bools

    @property
    def sets(self) -> int:
        """The number of sets."""
        return int(self.gone.shape[1])

    def by_position(self, count: int) -> tuple[list[Any], list[Any], list[bool]]:
        """Return for each of `count` positions the sets without it, or None, how much less it takes, and
        whether that is after its second edge."""
        gone: list[Any] = [None] * count
        less: list[Any] = [0] * count
        along = [False] * count
        rows: list[Any] = list(self.gone if self.less.shape[1] == 1 else self.gone[:, :, None])
        for position, wait, shorter, by_b in zip(
            self.at.tolist(), self.wait.tolist(), _columns(self.less), self.along.tolist(), strict=True
        ):
            gone[position], less[position], along[position] = rows[wait], shorter, by_b
        return gone, less, along


def _columns(weights: Ints) -> list[Any]:
    """Return the weights of each position: a row, or a number if there is one column."""
    return weights[:, 0].tolist() if weights.shape[1] == 1 else list(weights)


def order_nodes(a: Ints, b: Ints, when: Ints) -> Program:
    """Put nodes in order. `when` is the recorded time of each; node 0 is the origin.

    Edges that would form a cycle (clocks that disagree by more than a duration) are cut.
    """
    key, cut_a, cut_b = _sort_keys(a, b, when)
    order = np.argsort(key, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    a, b = np.where(cut_a, 0, a), np.where(cut_b, 0, b)
    return Program(order, place, place[a][order].tolist(), place[b][order].tolist(), cut_a, cut_b)


def _sort_keys(a: Ints, b: Ints, when: Ints) -> tuple[Ints, Bools, Bools]:
    """Return keys that sort every node behind those it depends on, near its recorded time."""
    key = (np.maximum(when, 0) + 1) << _TIE_BITS
    key[0] = 0
    cut_a, cut_b = np.zeros(len(key), bool), np.zeros(len(key), bool)
    for round_number in range(2000):
        floor = np.maximum(np.where(cut_a, 0, key[a]), np.where(cut_b, 0, key[b]))
        floor[0] = -1
        wrong = floor >= key
        if not wrong.any():
            break
        if round_number >= 1000:  # a cycle: cut where keys still grow
            cut_b |= wrong & (key[b] >= key)
            if round_number >= 1500:
                cut_a |= wrong & (key[a] >= key)
        key[wrong] = floor[wrong] + 1
    return key, cut_a, cut_b


@dataclass(frozen=True)
class Stretches:
    """Work of one stream that hangs on one node and on the stretch before it, folded into one node each.

    `begin` are indices of first operations in stream order; `stretch_of` is the stretch of each operation.
    """

    begin: Ints
    stretch_of: Ints

    def fold(self, own: Ints, chained: Ints) -> tuple[Ints, Ints]:
        """Return the weights of the stretches: from the node they hang on, and from the stretch before.

        `own` is, for each operation, the time from that node to its end; `chained` from the end of the
        previous operation to its own end.
        """
        if not len(own):
            return own, chained
        along = self._chained_ends(chained)
        total = np.add.reduceat(chained, self.begin)
        reach: Ints = np.maximum.reduceat(own - along, self.begin) + total
        return reach, total

    def unfold(self, own: Ints, chained: Ints, node: Ints, before: Ints) -> Ints:
        """Return the end of each operation, from the times of the node its stretch hangs on and the one
        before.
        """
        if not len(own):
            return own
        along = self._chained_ends(chained)
        reach = running_maximum(own - along, self.stretch_of)
        latest: Ints = np.maximum(before[self.stretch_of], node[self.stretch_of] + reach) + along
        return latest

    def _chained_ends(self, chained: Ints) -> Ints:
        """Return the time from the end of the previous stretch to the end of each operation with nothing else
        to wait for.
        """
        total = np.cumsum(chained)
        before = total[self.begin] - chained[self.begin]
        along: Ints = total - before[self.stretch_of]
        return along


def running_maximum(values: Ints, groups: NDArray[np.int64]) -> Ints:
    """Return the running maximum within each run of equal `groups`."""
    result: Ints = values.copy()
    step = 1
    size = np.bincount(groups).max(initial=0)
    while step < size:
        same = groups[step:] == groups[:-step]
        result[step:] = np.where(same, np.maximum(result[step:], result[:-step]), result[step:])
        step *= 2
    return result
