"""Forward passes that build an autograd graph which no backward pass goes through: ``torch.no_grad()`` is
missing.

A node of a graph has a number, which counts up in its thread. What a call of a model makes has the numbers
between those at its begin and its end; a backward pass says whose numbers it has reached.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from torch import nn

from gapless.emulation.memory.memory_run import Rows
from gapless.emulation.support import stacks
from gapless.model.memory import UnusedGraph
from gapless.torch_internals import module_call

_MOST_NUMBERS = 100_000
"""Numbers of nodes that are kept before calls are settled: a few megabytes."""
_MOST_CALLS = 20_000
"""Calls of models that are remembered; a check sees far fewer."""


@dataclass
class _Calls:
    """Calls of a model at one line with no backward pass between them: the numbers of their nodes.

    `ranges` are pairs of numbers: after the first, up to and with the second.
    """

    place: tuple[int, int]
    passes: int
    training: bool
    ranges: list[list[int]] = field(default_factory=list)

    def add(self, begin: int, end: int) -> None:
        if self.ranges and begin <= self.ranges[-1][1]:
            self.ranges[-1][0] = min(self.ranges[-1][0], begin)
            self.ranges[-1][1] = max(self.ranges[-1][1], end)
        else:
            self.ranges.append([begin, end])

    def reached(self, numbers: list[int]) -> bool:
        """Whether a backward pass has come to one of them. A node's own number is that before it was made."""
        return any(bisect_left(numbers, begin) < bisect_left(numbers, end) for begin, end in self.ranges)


class UnusedGraphs:
    """Told of nodes as they are made, and of those that backward passes reach."""

    def __init__(self) -> None:
        self._call = module_call.__code__
        self._groups: dict[tuple[tuple[int, int], int, bool], _Calls] = {}
        self._reached: set[int] = set()
        self._used: set[tuple[int, int]] = set()
        self._passes = 0

    def begin_backward(self) -> None:
        """A backward pass begins."""
        self._passes += 1
        if len(self._reached) > _MOST_NUMBERS:
            self._settle()

    def _settle(self) -> None:
        """Forget the calls that backward passes have come to, and by what numbers."""
        reached = sorted(self._reached)
        for key, group in list(self._groups.items()):
            if group.reached(reached):
                self._used.add(group.place)
                del self._groups[key]
        self._reached.clear()

    def reach(self, number: int) -> None:
        """A backward pass is at the node with that number."""
        self._reached.add(number)

    def made(self, begin: int, end: int, frame: FrameType | None) -> None:
        """A call that `frame` is in has made the nodes from number `begin` to `end`."""
        outer: FrameType | None = None
        while frame is not None:
            if frame.f_code is self._call:
                outer = frame
            frame = frame.f_back
        if outer is None or len(self._groups) > _MOST_CALLS:
            return
        if threading.current_thread() is not threading.main_thread():
            return  # whose numbers are others
        module: Any = outer.f_locals.get("self")
        caller = _user(outer.f_back)
        if caller is None or not isinstance(module, nn.Module):
            return
        stacks._codes.setdefault(id(caller.f_code), caller.f_code)
        place = id(caller.f_code), caller.f_lasti
        key = (place, self._passes, module.training)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Calls(*key)
        group.add(begin, end)

    def found(self, rows: Rows) -> tuple[UnusedGraph, ...]:
        """What was asked for in vain, by the line that calls the model: for training only where no call from
        there was of use, and another backward pass came after it."""
        self._settle()
        unused: defaultdict[tuple[tuple[int, int], bool], list[_Calls]] = defaultdict(list)
        for group in self._groups.values():
            if not group.training or group.passes < self._passes:
                unused[group.place, group.training].append(group)
        idents = _Idents(rows)
        found = []
        for (place, training), groups in unused.items():
            line = stacks._resolve_frame(*place)
            if line is None or (training and place in self._used):
                continue
            mine = tuple(sorted({one for group in groups for one in idents.within(group.ranges)}))
            if mine:
                found.append(UnusedGraph(line=line, training=training, idents=mine))
        return tuple(found)


def _user(frame: FrameType | None) -> FrameType | None:
    """The next frame outwards of the program's own code."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not stacks.is_own(file) and not stacks.library_of(file):
            return frame
        frame = frame.f_back
    return None


class _Idents:
    """Allocations by the number of nodes that there were when they were made."""

    def __init__(self, rows: Rows) -> None:
        known = sorted((number, ident) for ident, number in enumerate(rows.nodes) if number >= 0)
        self._numbers = [number for number, _ in known]
        self._idents = [ident for _, ident in known]

    def within(self, ranges: list[list[int]]) -> Iterator[int]:
        for begin, end in ranges:
            low, high = bisect_right(self._numbers, begin), bisect_right(self._numbers, end)
            yield from self._idents[low:high]
