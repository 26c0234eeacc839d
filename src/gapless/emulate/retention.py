"""When to look for the names that keep what steps leave behind: seldom, and only where something stays."""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from gapless.emulate import stacks
from gapless.emulate.holders import Left, holders, owners
from gapless.emulate.memory_run import Rows
from gapless.model.memory import Checkpoint, Holder
from gapless.model.source import user_line

WARM_UP = 2
"""Steps in which what stays is made (as in `gapless.memory.growth`, which judges the whole run)."""
_KEPT = 1
"""What the last step holds may still be dropped."""
_LEAST_STEPS = 4
_LEAST_BYTES = 1 << 10
"""Bytes a step that are worth a look."""
_FIRST = WARM_UP + _LEAST_STEPS + _KEPT
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
        growing = self._growing(ends, here)
        try:
            self.holders = holders(growing, sys._getframe(1)) if growing else ()
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

    def _growing(self, ends: list[int], live: Iterable[tuple[int, int]]) -> dict[int, Left]:
        """What each step from the third on has left behind, by the storage's key; nothing where some step
        has left nothing.

        `ends` are the numbers of allocations at the steps' ends.
        """
        rows, last = self._rows, len(ends) - _KEPT
        by_place: defaultdict[int, dict[int, Left]] = defaultdict(dict)
        for key, ident in live:
            step = bisect_right(ends, ident)
            if WARM_UP <= step < last:
                by_place[rows.places[ident]][key] = Left(step, rows.sizes[ident])
        growing: dict[int, Left] = {}
        for lefts in by_place.values():
            if len({left.step for left in lefts.values()}) == last - WARM_UP:
                growing.update(lefts)
        if sum(left.size for left in growing.values()) < _LEAST_BYTES * (last - WARM_UP):
            return {}
        return growing
