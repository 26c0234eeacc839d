"""Look for the names that keep memory of past steps: seldom, and only if something stays."""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from gapless.emulation.memory.holders import find_holders, find_owners
from gapless.emulation.memory.memory_run import RequestRows
from gapless.emulation.memory.retained_tree import Leftover
from gapless.emulation.support import stacks
from gapless.model.memory import Checkpoint, Holder
from gapless.model.pace import LAST_STEPS_IGNORED, MIN_STEPS, WARM_UP, growth_interval, steady_steps
from gapless.model.source import user_line

_LEAST_BYTES = 1 << 10
"""Least growth in bytes per step to look for."""
_FIRST_SEARCH = WARM_UP + MIN_STEPS + LAST_STEPS_IGNORED
"""Steps after which growth can show."""
_LOADED_MARKS = 3
"""Marks after which loaded tensors are looked for: the optimizer has stepped, and its state is known."""
_SECOND_SEARCH = 12
"""Steps of the second search: where a run usually ends. Each later one is at twice the steps."""


class Retention:
    """Counts the steps of one device's requests, and looks for holders now and then."""

    def __init__(self, rows: RequestRows) -> None:
        self._rows = rows
        self._marks = 0
        self._next = _FIRST_SEARCH
        self.holders: tuple[Holder, ...] = ()
        self.checkpoints: tuple[Checkpoint, ...] = ()

    def look(
        self, live: Mapping[int, tuple[RequestRows, int]], step_ends: Callable[[], Sequence[int]]
    ) -> None:
        """Count a mark, and search if it is time.

        `live` gives by key where each storage's allocation is counted, and `step_ends` the numbers of marks
        that have ended steps.
        """
        rows = self._rows
        self._marks += 1
        if self._marks == _LOADED_MARKS:
            self._name_loaded_tensors(live)
        if self._marks < self._next or threading.current_thread() is not threading.main_thread():
            return
        ends = [rows.allocations_at[number] for number in step_ends() if number in rows.allocations_at]
        if len(ends) < self._next:
            return
        self._next = _SECOND_SEARCH if len(ends) < _SECOND_SEARCH else 2 * len(ends)
        here = [(key, ident) for key, (owner_rows, ident) in list(live.items()) if owner_rows is rows]
        frame = sys._getframe(1)
        try:
            self.holders = tuple(
                holder
                for every, growing in self._growing(ends, here)
                for holder in find_holders(growing, frame, every)
            )
        except Exception:  # an unusual object: growth is then shown where it is allocated
            self.holders = ()

    def _name_loaded_tensors(self, live: Mapping[int, tuple[RequestRows, int]]) -> None:
        """Name the loaded tensors still on the device that are neither weights nor optimizer state."""
        rows = self._rows
        here = {
            key: ident
            for key, (owner_rows, ident) in list(live.items())
            if owner_rows is rows and rows.kinds[ident] == "checkpoint"
        }
        if here and threading.current_thread() is threading.main_thread():
            sizes = {key: rows.sizes[ident] for key, ident in here.items()}
            raws = {number: place for place, number in rows.place_numbers.items()}
            self.checkpoints = tuple(
                Checkpoint(
                    line=user_line(stacks.resolve(raws[rows.places[here[keys[0]]]][1])),
                    name=name,
                    entries=entries,
                    idents=tuple(sorted(here[key] for key in keys)),
                )
                for name, entries, keys in find_owners(sizes, sys._getframe(2))
            )

    def _growing(
        self, ends: list[int], live: Iterable[tuple[int, int]]
    ) -> list[tuple[int, dict[int, Leftover]]]:
        """Return the leftovers of steps by storage key, per pace at which they stay; every step's first.

        `ends` are the numbers of allocations at the steps' ends.
        """
        rows, steps = self._rows, len(ends)
        by_place: defaultdict[int, dict[int, Leftover]] = defaultdict(dict)
        for key, ident in live:
            by_place[rows.places[ident]][key] = Leftover(bisect_right(ends, ident), rows.sizes[ident])
        paces: defaultdict[int, dict[int, Leftover]] = defaultdict(dict)
        for lefts in by_place.values():
            numbers = {left.step for left in lefts.values()}
            if every := growth_interval(numbers, steps):
                steady = set(steady_steps(numbers, steps, every))
                paces[every].update({key: left for key, left in lefts.items() if left.step in steady})
        return [
            (every, growing)
            for every, growing in sorted(paces.items())
            if sum(left.size for left in growing.values()) * every
            >= _LEAST_BYTES * (steps - WARM_UP - LAST_STEPS_IGNORED)
        ]
