"""Find forward passes whose autograd graph no backward pass uses: ``torch.no_grad()`` is missing.

Autograd nodes are numbered, counting up in each thread. A model call creates the nodes between the numbers at
its begin and its end; backward passes report the numbers they reach.
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

from gapless.emulation.memory.memory_run import RequestRows
from gapless.emulation.support import stacks
from gapless.model.memory import UnusedGraph
from gapless.torch_internals import module_call

_MAX_NUMBERS = 100_000
"""Node numbers that are kept before calls are settled: a few megabytes."""
_MAX_CALLS = 20_000
"""Model calls that are remembered; a check sees far fewer."""


@dataclass
class _ModelCalls:
    """Model calls at one line between two backward passes, with the numbers of their nodes.

    `ranges` are pairs of numbers: after the first, up to and including the second.
    """

    place: tuple[int, int]
    passes: int
    training: bool
    ranges: list[list[int]] = field(default_factory=list)

    def add(self, begin: int, end: int) -> None:
        """Add the range of one call, merged with the last one if they touch."""
        if self.ranges and begin <= self.ranges[-1][1]:
            self.ranges[-1][0] = min(self.ranges[-1][0], begin)
            self.ranges[-1][1] = max(self.ranges[-1][1], end)
        else:
            self.ranges.append([begin, end])

    def was_reached(self, numbers: list[int]) -> bool:
        """Whether a backward pass has reached one of them. A node's number is the count before its
        creation."""
        return any(bisect_left(numbers, begin) < bisect_left(numbers, end) for begin, end in self.ranges)


class UnusedGraphs:
    """Notified of nodes as they are created, and of those that backward passes reach."""

    def __init__(self) -> None:
        self._call = module_call.__code__
        self._groups: dict[tuple[tuple[int, int], int, bool], _ModelCalls] = {}
        self._reached: set[int] = set()
        self._used: set[tuple[int, int]] = set()
        self._passes = 0

    def begin_backward(self) -> None:
        """Note the begin of a backward pass."""
        self._passes += 1
        if len(self._reached) > _MAX_NUMBERS:
            self._settle()

    def _settle(self) -> None:
        """Drop the calls that backward passes have reached, and the numbers."""
        reached = sorted(self._reached)
        for key, group in list(self._groups.items()):
            if group.was_reached(reached):
                self._used.add(group.place)
                del self._groups[key]
        self._reached.clear()

    def reach(self, number: int) -> None:
        """Note that a backward pass has reached the node with that number."""
        self._reached.add(number)

    def note_nodes(self, begin: int, end: int, frame: FrameType | None) -> None:
        """Note that the call around `frame` created the nodes from number `begin` to `end`."""
        outer: FrameType | None = None
        while frame is not None:
            if frame.f_code is self._call:
                outer = frame
            frame = frame.f_back
        if outer is None or len(self._groups) > _MAX_CALLS:
            return
        if threading.current_thread() is not threading.main_thread():
            return  # each thread has its own numbers
        module: Any = outer.f_locals.get("self")
        caller = _user_frame(outer.f_back)
        if caller is None or not isinstance(module, nn.Module):
            return
        stacks._codes.setdefault(id(caller.f_code), caller.f_code)
        place = id(caller.f_code), caller.f_lasti
        key = (place, self._passes, module.training)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _ModelCalls(*key)
        group.add(begin, end)

    def unused_graphs(self, rows: RequestRows) -> tuple[UnusedGraph, ...]:
        """Return the unused graphs with their allocations, by the line that calls the model.

        Training calls count only if no call from their line was used, and another backward pass came later.
        """
        self._settle()
        unused: defaultdict[tuple[tuple[int, int], bool], list[_ModelCalls]] = defaultdict(list)
        for group in self._groups.values():
            if not group.training or group.passes < self._passes:
                unused[group.place, group.training].append(group)
        idents = _AllocationIndex(rows)
        graphs = []
        for (place, training), groups in unused.items():
            line = stacks._resolve_frame(*place)
            if line is None or (training and place in self._used):
                continue
            mine = tuple(sorted({ident for group in groups for ident in idents.within(group.ranges)}))
            if mine:
                graphs.append(UnusedGraph(line=line, training=training, idents=mine))
        return tuple(graphs)


def _user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the next outer frame of the program's own code."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not stacks.is_own(file) and not stacks.library_of(file):
            return frame
        frame = frame.f_back
    return None


class _AllocationIndex:
    """Allocations by the number of autograd nodes at the time."""

    def __init__(self, rows: RequestRows) -> None:
        numbered = sorted((number, ident) for ident, number in enumerate(rows.nodes) if number >= 0)
        self._numbers = [number for number, _ in numbered]
        self._idents = [ident for _, ident in numbered]

    def within(self, ranges: list[list[int]]) -> Iterator[int]:
        """Yield the allocations made within ranges of node numbers."""
        for begin, end in ranges:
            low, high = bisect_right(self._numbers, begin), bisect_right(self._numbers, end)
            yield from self._idents[low:high]
