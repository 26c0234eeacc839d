"""`RetainedTree`: the objects a walk has reached, with the steps whose memory each keeps."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gapless.emulation.memory.references import Walk
from gapless.model.pace import MIN_REPEATS

_MIN_SHARE = 0.05
"""Share of the growing bytes that a name must keep to be reported."""
_MIN_STEP_SHARE = 0.5
"""Share of the steps of which a name must keep something: less is not growth."""

MIN_STEPS = 2
"""Steps of which a container keeps something if the last of three is still in a variable alone."""

_SEQUENCES: tuple[Any, ...] = (list, deque)


class Leftover(NamedTuple):
    """Memory that a step left behind in a storage: the step's number, and bytes."""

    step: int
    size: int


class RetainedTree:
    """The values of a walk, with the steps and bytes that each keeps."""

    def __init__(self, walk: Walk, growing: Mapping[int, Leftover]) -> None:
        self.walk = walk
        count = len(walk.values)
        self.steps = [0] * count  # a bit for each step
        self.bytes = [0] * count
        self.in_graphs = [0] * count
        self.children: list[list[int]] = [[] for _ in range(count)]
        self.parents, self.edges = list(walk.parents), list(walk.edges)
        self._prefer_keepers(growing)
        for key, position in walk.leaves.items():
            left = growing[key]
            self.steps[position] |= 1 << left.step
            self.bytes[position] += left.size
        for position in self._innermost_first():
            parent = self.parents[position]
            if self.bytes[position] and parent >= 0:
                self.steps[parent] |= self.steps[position]
                self.bytes[parent] += self.bytes[position]
                inside = self.bytes[position] if self.edges[position][1] else self.in_graphs[position]
                self.in_graphs[parent] += inside
                self.children[parent].append(position)
        self._tops = [at for at in range(count) if self.bytes[at] and self.parents[at] < 0]
        self.times = len({left.step for left in growing.values()})
        self._least = max(MIN_STEPS, min(MIN_REPEATS, self.times - 1), int(_MIN_STEP_SHARE * self.times))
        self.least_bytes = max(int(_MIN_SHARE * sum(left.size for left in growing.values())), 1)

    def _prefer_keepers(self, growing: Mapping[int, Leftover]) -> None:
        """Count a value with two holders under the one that leads to more steps.

        A sample of a buffer is reached sooner than the buffer, and keeps nothing that the buffer does not.
        """
        if not self.walk.also:
            return
        reached = self._reached_steps(growing)
        for position, ways in sorted(self.walk.also.items()):
            if not reached[position] or self.parents[position] < 0:  # a variable needs no other holder
                continue
            best = self._rank(self.parents[position], reached)
            for parent, edge in ways:
                rank = self._rank(parent, reached)
                if rank > best and not self._is_within(parent, position):
                    best, self.parents[position], self.edges[position] = rank, parent, edge

    def _rank(self, position: int, reached: Sequence[int]) -> tuple[int, int]:
        """Rank a holder: by the most steps that it or an outer holder leads to, then by its entries if a
        sequence."""
        value = self.walk.values[position]
        base = next((sequence for sequence in _SEQUENCES if issubclass(type(value), sequence)), None)
        entries = base.__len__(value) if base is not None else 0
        return self._max_steps(position, reached), entries

    def _reached_steps(self, growing: Mapping[int, Leftover]) -> list[int]:
        """Return for each value a bit per step of which it leads to something, on any path."""
        reached = [0] * len(self.parents)
        pending: list[tuple[int, int]] = []
        for key, position in self.walk.leaves.items():
            pending.append((position, 1 << growing[key].step))
        while pending:
            position, bits = pending.pop()
            bits &= ~reached[position]
            if bits:
                reached[position] |= bits
                pending += [(parent, bits) for parent, _ in self.walk.also.get(position, ())]
                if self.parents[position] >= 0:
                    pending.append((self.parents[position], bits))
        return reached

    def _max_steps(self, position: int, reached: Sequence[int]) -> int:
        """Return the most steps that a value from `position` outwards leads to."""
        most = 0
        while position >= 0:
            most = max(most, reached[position].bit_count())
            position = self.parents[position]
        return most

    def _is_within(self, position: int, outer: int) -> bool:
        while position >= 0:
            if position == outer:
                return True
            position = self.parents[position]
        return False

    def _innermost_first(self) -> list[int]:
        """Return the positions of all values, each before its holder."""
        inner: list[list[int]] = [[] for _ in self.parents]
        pending: list[int] = []
        for position, parent in enumerate(self.parents):
            (inner[parent] if parent >= 0 else pending).append(position)
        order = []
        while pending:
            position = pending.pop()
            order.append(position)
            pending += inner[position]
        return order[::-1]

    def growing_values(self) -> Iterator[int]:
        """Yield the innermost values that keep something of step after step."""
        pending = [at for at in self._tops if self._keeps(self.steps[at])]
        while pending:
            position = pending.pop()
            inner, steps, held = [], 0, 0
            for child in self.children[position]:
                if self._keeps(self.steps[child]):
                    inner.append(child)
                else:
                    steps |= self.steps[child]
                    held += self.bytes[child]
            pending += inner
            if not inner or (self._keeps(steps) and held >= self.least_bytes):
                yield position

    def _keeps(self, steps: int) -> bool:
        """Whether `steps`, a bit per step, are enough to be growth."""
        return steps.bit_count() >= self._least

    def named_holder(self, position: int) -> int:
        """Return the nearest value towards the root that the program has a name for; -1 if none."""
        while position >= 0 and not self.edges[position][0]:
            position = self.parents[position]
        return position

    def path(self, position: int) -> list[str]:
        """Return the variable's name and the labels that lead to the value at `position`."""
        labels: list[str] = []
        while position >= 0:
            label = self.edges[position][0]
            if label:
                labels.append(label)
                if label[0] not in ".[":
                    break  # a variable
            position = self.parents[position]
        return labels[::-1]
