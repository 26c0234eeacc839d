"""Riders: host time and device work that go with a wait, because the change that removes the wait removes
the operators around it, too.

A rider is a stretch of a thread, an anchor like a wait, with the device work that it launches. Marks of waits
have four parts if there are riders: the waits themselves, the device work of their certain riders, the
stretches of these, and possible riders.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gapless.replay.device import Crossings, DeviceOrder
from gapless.replay.host import RIDER, Anchors
from gapless.trace.columns import Bools, Ints
from gapless.trace.timeline import concatenate

PARTS = 4
"""Parts of marks with riders."""
_DEVICE, _HOST, _POSSIBLE = 1, 2, 3


@dataclass(frozen=True)
class Rider:
    """A stretch of the host that goes with the wait of host row `row`.

    It lasts from `begin` to `end`, of which `stays` nanoseconds remain, and launches the device rows `work`,
    which go. `whole`: the call that waits goes, too. `certain` says whether the change is known to remove it.
    """

    row: int
    begin: int
    end: int
    work: Collection[int] = ()
    stays: int = 0
    whole: bool = False
    certain: bool = True


@dataclass(frozen=True)
class Dropped:
    """Device rows that go with riders, each with the position of its mark."""

    work: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    mark: Ints = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass(frozen=True)
class WaitMarks:
    """Marks of `count` waits, in `PARTS` if they have riders."""

    count: int
    ridden: bool = False

    def none(self) -> Bools:
        return np.zeros(self.count * (PARTS if self.ridden else 1), bool)

    def waits(self, marks: Bools) -> Bools:
        """Return the waits of `marks`, without parts."""
        return marks[: self.count]

    def on_device(self, marks: Bools) -> Bools:
        """Return `marks` with the device work that the change is known to remove, launched as before."""
        return self._arrange(marks, _DEVICE)

    def with_certain(self, marks: Bools) -> Bools:
        """Return `marks` with the riders that the change is known to remove."""
        return self._arrange(marks, _HOST)

    def with_possible(self, marks: Bools) -> Bools:
        """Return `marks` with all riders."""
        return self._arrange(marks, _POSSIBLE)

    def _arrange(self, marks: Bools, last: int) -> Bools:
        """Return `marks` with the parts up to `last`."""
        waits = self.waits(marks)
        if not self.ridden:
            return waits
        return np.concatenate([waits & (part <= last) for part in range(PARTS)])


def add_riders(
    anchors: Anchors, riders: Sequence[Rider], positions: Mapping[int, int], count: int
) -> Anchors:
    """Return `anchors` with those of the riders of `count` waits, at their `positions` by host row."""
    waits = np.array([positions.get(rider.row, -1) for rider in riders], np.int64)
    begin = np.array([rider.begin for rider in riders], np.int64)
    end = np.array([rider.end for rider in riders], np.int64)
    bare = np.zeros(count, np.int64)
    of_wait = anchors.wait >= 0
    np.add.at(bare, anchors.wait[of_wait], anchors.bare[of_wait])
    stays = np.array([rider.stays for rider in riders], np.int64)
    # without the call that waits its thread is where it was before this stretch
    stays -= np.where([rider.whole for rider in riders], bare[np.maximum(waits, 0)], 0)
    none = np.full(len(riders), -1, np.int64)
    thread = np.zeros(count, np.int64)
    thread[anchors.wait[of_wait]] = anchors.thread[of_wait]
    own = Anchors(
        none * 0 + RIDER, thread[np.maximum(waits, 0)], begin, end, end - begin, stays, none, none * 0,
        none, none, _marks(riders, waits, count, _HOST),
    )  # fmt: skip
    joined = concatenate([anchors, own.take(np.flatnonzero((waits >= 0) & _is_free(anchors, own)))])
    return joined.take(np.lexsort((joined.arrive, joined.leave, joined.thread)))


def _marks(riders: Sequence[Rider], waits: Ints, count: int, part: int) -> Ints:
    """Return the position of each rider's mark: in `part`, if it is certain."""
    return waits + count * np.array([part if rider.certain else _POSSIBLE for rider in riders], np.int64)


def _is_free(anchors: Anchors, own: Anchors) -> Bools:
    """Mark the riders in whose time no anchor lies."""
    free = np.ones(len(own), bool)
    for thread in set(own.thread.tolist()):
        of_thread = anchors.thread == thread
        mine, leave = own.thread == thread, anchors.leave[of_thread]
        arrive = np.append(anchors.arrive[of_thread], np.iinfo(np.int64).max)
        at = np.searchsorted(leave, own.arrive[mine], side="right")
        free[mine] = arrive[at] >= own.leave[mine]
    return free


def work_of_riders(
    riders: Sequence[Rider], anchors: Anchors, positions: Mapping[int, int], count: int,
    order: DeviceOrder, crossings: Crossings, collectives: Ints,
) -> Dropped:  # fmt: skip
    """Return the device work that goes with the riders among `anchors`: what only follows its stream."""
    placed = set(
        zip(
            anchors.wait[anchors.kind == RIDER].tolist(),
            anchors.arrive[anchors.kind == RIDER].tolist(),
            strict=True,
        )
    )
    waits = np.array([positions.get(rider.row, -1) for rider in riders], np.int64)
    marks = [_marks(riders, waits, count, part).tolist() for part in (_HOST, _DEVICE)]
    pairs = [
        (row, mark)
        for rider, own, mark in zip(riders, *marks, strict=True)
        if (own, rider.begin) in placed
        for row in rider.work
    ]
    work, mark = np.array(pairs, np.int64).reshape(-1, 2).T
    plain = (order.before >= 0) & (order.head < 0) & ~order.released & ~order.follows
    plain[crossings.work] = False
    plain[collectives] = False
    return Dropped(work[plain[work]], mark[plain[work]])
