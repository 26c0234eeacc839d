"""`ForwardCalls`: which calls of one thread created which autograd nodes."""

from __future__ import annotations

import bisect
from array import array
from typing import Any

from gapless.emulation.support import stacks
from gapless.torch_internals import sequence_number

_MAX_CALLS = 200_000
"""Calls that are remembered: a graph that is kept for long may have as many nodes."""
_MAX_TRACEBACKS = 10_000
"""Calls whose stack is a traceback object of torch's, 0.5 kB each; older ones become numbers, shared."""
_MAX_DISTANCE = 10_000
"""Nodes after the one looked for at which the search stops."""

_ForwardCall = tuple[Any, str]
"""The stack, as a traceback object or as numbers, and the module."""


class ForwardCalls:
    """The calls of one thread that created autograd nodes, ordered by the calls' ends.

    `above` is the stack of what started the thread; `owner` is the core that they are kept for.
    """

    def __init__(self, owner: object, above: stacks.RawStack) -> None:
        self.owner = owner
        self._above = above
        self._begins = array("q")
        self._ends = array("q")
        self._calls: list[_ForwardCall] = []
        self._distinct: dict[_ForwardCall, _ForwardCall] = {}
        self._numbered = 0  # calls, of the oldest, whose stacks are numbers

    def add(self, begin: int, traceback: Any, module: str = "") -> None:
        """Add a call that has just ended at that traceback and created the nodes from number `begin` on."""
        if len(self._ends) > _MAX_CALLS:
            half = _MAX_CALLS // 2
            del self._begins[:half], self._ends[:half], self._calls[:half]
            self._numbered = max(self._numbered - half, 0)
        if len(self._calls) - self._numbered > _MAX_TRACEBACKS:
            until = self._numbered + _MAX_TRACEBACKS // 2
            for position in range(self._numbered, until):
                self._call(position)
            self._numbered = until
        self._begins.append(begin)
        self._ends.append(sequence_number())
        self._calls.append((traceback, module))

    def call_of(self, number: int) -> tuple[stacks.RawStack, str]:
        """Return the stack and module of the innermost call that created the node with that number, or
        nothing.

        A nested call ends first, and so comes first.
        """
        for position in range(bisect.bisect_right(self._ends, number), len(self._ends)):
            if self._begins[position] <= number:
                return self._call(position)
            if self._ends[position] - number > _MAX_DISTANCE:
                break
        return (), ""

    def _call(self, position: int) -> tuple[stacks.RawStack, str]:
        """Return the call at `position`, with numbers for its stack."""
        stack, module = self._calls[position]
        if type(stack) is not tuple:
            call = stacks.to_raw_stack(stack) + self._above, module
            self._calls[position] = self._distinct.setdefault(call, call)
        return self._calls[position]
