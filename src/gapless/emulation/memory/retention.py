"""When to look for the names that keep what steps leave behind: seldom, and only where something stays."""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from gapless.emulation.memory.holders import holders, owners
from gapless.emulation.memory.memory_run import Rows
from gapless.emulation.memory.retained_tree import Left
from gapless.emulation.support import stacks
from gapless.model.memory import Checkpoint, Holder
from gapless.model.pace import KEPT, LEAST, WARM_UP, pace, steady
from gapless.model.source import user_line

_LEAST_BYTES = 1 << 10
"""Bytes a step that are worth a look."""
_FIRST = WARM_UP + LEAST + KEPT
_LOADED = 3
"""Marks after which what was loaded is looked for: the optimizer has stepped, and its state is known."""
_SECOND = 12
"""Steps after which it is looked for: as soon as growth shows, where a run usually ends, then ever rarer."""


class Retention:
    """Counts the steps of one device's requests, and looks for holders now and then."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._marks = 0
        self._next = _FIRST
        self.holders: tuple[Holder, ...] = ()
        self.checkpoints: tuple[Checkpoint, ...] = ()

    def look(self, live: Mapping[int, tuple[Rows, int]], step_ends: Callable[[], Sequence[int]]) -> None:
        """A mark has come. `live` gives by its key where each storage's allocation is counted, and
        `step_ends` the numbers of marks that have ended steps."""
        rows = self._rows
        self._marks += 1
        if self._marks == _LOADED:
            self._find_loaded(live)
        if self._marks < self._next or threading.current_thread() is not threading.main_thread():
            return
        ends = [rows.made[number] for number in step_ends() if number in rows.made]
        if len(ends) < self._next:
            return
        self._next = _SECOND if len(ends) < _SECOND else 2 * len(ends)
        here = [(key, ident) for key, (of, ident) in list(live.items()) if of is rows]
        frame = sys._getframe(1)
        try:
            self.holders = tuple(
                holder
                for every, growing in self._growing(ends, here)
                for holder in holders(growing, frame, every)
            )
        except Exception:  # of an object that is like no other: growth is then shown where it is allocated
            self.holders = ()

    def _find_loaded(self, live: Mapping[int, tuple[Rows, int]]) -> None:
        """Name what was loaded to the device, is no weight or state of the training, and is still there."""
        rows = self._rows
        here = {
            key: ident
            for key, (of, ident) in list(live.items())
            if of is rows and rows.kinds[ident] == "checkpoint"
        }
        if here and threading.current_thread() is threading.main_thread():
            sizes = {key: rows.sizes[ident] for key, ident in here.items()}
            raws = {number: place for place, number in rows.known.items()}
            self.checkpoints = tuple(
                Checkpoint(
                    line=user_line(stacks.resolve(raws[rows.places[here[keys[0]]]][1])),
                    name=name,
                    entries=entries,
                    idents=tuple(sorted(here[key] for key in keys)),
                )
                for name, entries, keys in owners(sizes, sys._getframe(2))
            )

    def _growing(self, ends: list[int], live: Iterable[tuple[int, int]]) -> list[tuple[int, dict[int, Left]]]:
        """What steps have left behind, by the storage's key, for each pace at which something stays; what
        every step leaves comes first.

        `ends` are the numbers of allocations at the steps' ends.
        """
        rows, steps = self._rows, len(ends)
        by_place: defaultdict[int, dict[int, Left]] = defaultdict(dict)
        for key, ident in live:
            by_place[rows.places[ident]][key] = Left(bisect_right(ends, ident), rows.sizes[ident])
        paces: defaultdict[int, dict[int, Left]] = defaultdict(dict)
        for lefts in by_place.values():
            numbers = {left.step for left in lefts.values()}
            if every := pace(numbers, steps):
                wanted = set(steady(numbers, steps, every))
                paces[every].update({key: left for key, left in lefts.items() if left.step in wanted})
        return [
            (every, growing)
            for every, growing in sorted(paces.items())
            if sum(left.size for left in growing.values()) * every >= _LEAST_BYTES * (steps - WARM_UP - KEPT)
        ]
