"""`ForwardCalls`: which calls of one thread made which autograd nodes."""

from __future__ import annotations

import bisect
from array import array
from typing import Any

from gapless.emulation.support import stacks
from gapless.torch_internals import sequence_number

_MOST_CALLS = 200_000
"""Calls that are remembered: a graph that is kept for long may have as many nodes."""
_MOST_TRACEBACKS = 10_000
"""Calls whose stack is an object of torch's, 0.5 kB each: the older ones have numbers, each stack once."""
_FAR = 10_000
"""Nodes behind one that is looked for, after which it is given up."""

_Call = tuple[Any, str]
"""The stack, as an object of torch's or as numbers, and the module."""


class ForwardCalls:
    """The calls of one thread that made autograd nodes, in order of the calls' ends.

    `above` is the stack of what started the thread; `owner` is the core that they are kept for.
    """

    def __init__(self, owner: object, above: stacks.RawStack) -> None:
        self.owner = owner
        self._above = above
        self._begins = array("q")
        self._ends = array("q")
        self._calls: list[_Call] = []
        self._distinct: dict[_Call, _Call] = {}
        self._numbered = 0  # calls, of the oldest, whose stacks are numbers

    def add(self, begin: int, traceback: Any, module: str = "") -> None:
        """A call has just ended at that traceback, which made the nodes from number `begin` on."""
        if len(self._ends) > _MOST_CALLS:
            half = _MOST_CALLS // 2
            del self._begins[:half], self._ends[:half], self._calls[:half]
            self._numbered = max(self._numbered - half, 0)
        if len(self._calls) - self._numbered > _MOST_TRACEBACKS:
            until = self._numbered + _MOST_TRACEBACKS // 2
            for position in range(self._numbered, until):
                self._call(position)
            self._numbered = until
        self._begins.append(begin)
        self._ends.append(sequence_number())
        self._calls.append((traceback, module))

    def call_of(self, number: int) -> tuple[stacks.RawStack, str]:
        """The stack and the module of the innermost call that made the node with that number, or nothing.

        A call inside another one ends before it, and so stands before it.
        """
        for position in range(bisect.bisect_right(self._ends, number), len(self._ends)):
            if self._begins[position] <= number:
                return self._call(position)
            if self._ends[position] - number > _FAR:
                break
        return (), ""

    def _call(self, position: int) -> tuple[stacks.RawStack, str]:
        """The call there, with numbers for its stack."""
        stack, module = self._calls[position]
        if type(stack) is not tuple:
            call = stacks.gathered(stack) + self._above, module
            self._calls[position] = self._distinct.setdefault(call, call)
        return self._calls[position]
