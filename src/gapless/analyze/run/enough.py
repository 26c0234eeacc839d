"""Decide whether a running script has run long enough: its steps, and what recurs between them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field

from gapless.analyze.run.loop import Loop, ReadSource, node_of, outside_torch, training_loops
from gapless.analyze.run.period import (
    ReadVariables,
    Recurring,
    UnknownValue,
    Variables,
    evaluate,
    first_name,
    pass_count,
    recurring,
    stride,
)
from gapless.analyze.run.phases import prefer_own_names
from gapless.files.input import source_text
from gapless.model import Recurrence, StepMark

MAX_EXTRA_SECONDS = 10.0
"""Seconds a script runs on after its steps to reach what recurs between them."""
_MAX_MARKS = 20
"""Marks kept to find the loops: enough for a few steps of several optimizers."""


@dataclass
class _WatchedPart:
    """A recurring part and how far the run is from it; `due_in` is in steps, -1 if unknown."""

    part: Recurring
    times: int = 0
    every: int = 0
    passes: int = 0
    """Passes of the training loop from one to the next; 0 if unknown."""
    due_in: int = -1
    was_true: bool = False
    """Whether its test was true at the previous mark."""
    counted: object = None
    is_tellable: bool = True
    """Whether reaching it can be recognised."""


@dataclass
class Enough:
    """Decide at each mark whether the script has run long enough.

    That is after `steps` steps, or up to `longer` seconds of script time later while the run may still reach
    a part of its loop that it has not reached.
    """

    steps: int
    look: ReadVariables
    longer: float = MAX_EXTRA_SECONDS
    read: ReadSource = source_text
    batches: Callable[[Loop], float] = lambda loop: 0.0
    """Returns batches per step from the DataLoader that `Loop` iterates over; 0 if unknown."""
    _marks: list[StepMark] = field(default_factory=list)
    _loops: tuple[Loop, ...] = ()
    _watched: tuple[_WatchedPart, ...] = ()
    _passes: dict[int, object] = field(default_factory=dict)
    _since: dict[int, int] = field(default_factory=dict)
    _counter: tuple[int, int, int] | None = None
    _turns: float = 0.0
    _times: list[tuple[float, int]] = field(default_factory=list)
    _reached: float = -1.0
    _strand: int = -1

    def __call__(self, mark: StepMark, count: int) -> bool:
        """Whether `mark`, the end of step number `count`, is the last one needed."""
        if not self.longer:
            return count >= self.steps
        if self._strand < 0:
            self._strand = mark.strand
        if mark.strand == self._strand:  # of threads that train side by side the first is followed
            self._note_mark(mark, count)
        if count < self.steps:
            return False
        if self._reached < 0:
            self._reached = mark.time
        left = self._reached + self.longer - mark.time
        return left <= 0 or not any(self._is_affordable(watch, left) for watch in self._watched)

    def _note_mark(self, mark: StepMark, count: int) -> None:
        """Keep `mark` and its time, find the loops if they changed, and update the progress in them."""
        mark = outside_torch(mark)
        self._marks = [*self._marks, mark][-_MAX_MARKS:]
        self._times = [*self._times, (mark.time, count)][-_MAX_MARKS:]
        if not self._loops or not self._loops[0].holds(mark.stack):
            self._find_loops()
        self._follow(count)

    def overdue(self, seconds: float) -> bool:
        """Whether, `seconds` after the start, the script is inside a part that takes too long."""
        return 0 <= self._reached < seconds - 2 * self.longer

    def waiting_for(self) -> list[str]:
        """Return the names of the parts that the script runs on for."""
        return [
            recurrence.name
            for recurrence in prefer_own_names(
                recurrence for recurrence in self.phases() if not recurrence.times
            )
        ]

    def phases(self) -> tuple[Recurrence, ...]:
        """Return what recurs in the loop and how often the run reached it, as far as recognised."""
        return tuple(
            Recurrence(name=watch.part.name, every=watch.every, times=watch.times, line=watch.part.line)
            for watch in self._watched
            if watch.is_tellable or watch.part.test is not None
        )

    def _find_loops(self) -> None:
        """Find the loops around the recent marks, and what recurs in them."""
        loops = training_loops(self._marks, (), self.read)
        if not loops:  # the marks so far are of another loop
            self._marks = self._marks[-1:]
            loops = training_loops(self._marks, (), self.read)
        self._loops = loops
        self._watched = tuple(_WatchedPart(part) for part in recurring(self._loops, self.read))
        self._passes, self._since = {}, {}
        self._counter, self._turns = None, 0.0

    # -- what the run comes to --------------------------------------------------------------------

    def _follow(self, count: int) -> None:
        """Update how far each loop is at the latest mark."""
        variables = [self.look(loop) for loop in self._loops]
        around = self._find_new_passes(variables, count)
        self._count_turns(count, variables[0] if variables else None)
        for watch in self._watched:
            names = variables[watch.part.level]
            if names is None:
                watch.is_tellable = False
                continue
            holds = self._check_test(watch, names)
            if watch.part.level == 0:
                watch.times += watch.was_true
            elif watch.part.level in around:
                watch.times += watch.part.test is None or watch.was_true or holds
            watch.was_true = holds
            if watch.part.test is None:
                self._predict_pass(watch, variables, count)

    def _find_new_passes(self, variables: list[Variables | None], count: int) -> set[int]:
        """Return the levels of outer loops that began another pass since the last mark.

        A loop did if its variable changed, or if the variable of the loop inside it restarted.
        """
        values: dict[int, object] = {}
        for level, (loop, names) in enumerate(zip(self._loops, variables, strict=True)):
            loop_value = names.get(first_name(loop.target)) if names is not None and loop.target else None
            plain = isinstance(loop_value, int | float | str)
            values[level] = loop_value if plain or loop_value is None else ("object", id(loop_value))
        before, self._passes = self._passes, values
        around = set()
        for level in range(1, len(self._loops)):
            now, then = values.get(level), before.get(level)
            inner, earlier = values.get(level - 1), before.get(level - 1)
            if (then is not None and now != then) or _is_lower(earlier, inner):
                around.add(level)
                self._since[level] = count
        return around

    def _count_turns(self, count: int, names: Variables | None) -> None:
        """Update how many passes of the training loop a step takes: several if gradients accumulate.

        Its loop variable tells if it counts, else the number of batches. `_counter` holds the variable at the
        last mark and at an earlier one, the first of its pass, with the steps until then.
        """
        node, now = node_of(self._loops[0], self.read) if self._loops else None, self._passes.get(0)
        each = stride(node.iter, names or {}) if isinstance(node, ast.For) else 0
        if not each or not isinstance(now, int):
            self._turns = self.batches(self._loops[0]) if self._loops else 0.0
            return
        last, first, since = self._counter or (now, 0, 0)
        if now > last:
            if 0 < since < count:
                self._turns = (now - first) / each / (count - since)
            first, since = (first, since) if since else (now, count)
        self._counter = (now, 0, 0) if now < last else (now, first, since)

    def _check_test(self, watch: _WatchedPart, names: Variables) -> bool:
        """Whether the test of `watch` is true now; also updates how often it is, and when next."""
        modulo = watch.part.modulo
        if watch.part.test is None or modulo is None:
            return False
        try:
            counted, every = evaluate(modulo.left, names), evaluate(modulo.right, names)
            holds = bool(evaluate(watch.part.test, names))
        except UnknownValue:
            watch.is_tellable = False
            return False
        if not (isinstance(counted, int) and isinstance(every, int) and every > 0):
            watch.is_tellable = False
            return False
        watch.is_tellable = not watch.part.level
        moved = isinstance(watch.counted, int) and counted != watch.counted
        if not watch.part.level:
            watch.every = every
            watch.due_in = -counted % every + 1 if moved else -1
        watch.counted = counted
        # At 0 it is unknown whether this already happened before the first step.
        return holds and counted != 0

    def _predict_pass(self, watch: _WatchedPart, variables: list[Variables | None], count: int) -> None:
        """Update when the loop of `watch` begins its next pass, if the lengths of its inner loops are
        known."""
        if not watch.passes:
            watch.passes = 1
            for loop, names in zip(self._loops[: watch.part.level], variables, strict=False):
                node = node_of(loop, self.read) if names is not None else None
                watch.passes *= pass_count(node.iter, names or {}) if isinstance(node, ast.For) else 0
        watch.every = max(round(watch.passes / (self._turns or 1.0)), min(watch.passes, 1))
        watch.is_tellable = self._passes.get(watch.part.level) is not None or isinstance(
            self._passes.get(watch.part.level - 1), int
        )
        watch.due_in = (
            max(self._since.get(watch.part.level, 0) + watch.every - count, 0) + 1 if watch.every else -1
        )

    def _is_affordable(self, watch: _WatchedPart, left: float) -> bool:
        """Whether the run may reach `watch` within `left` seconds."""
        if watch.times or not watch.is_tellable:
            return False
        (began, first), (now, last) = self._times[0], self._times[-1]
        step = (now - began) / max(last - first, 1)
        return watch.due_in < 0 or watch.due_in * step <= left


def _is_lower(before: object, now: object) -> bool:
    """Whether both are numbers and `now` is lower."""
    return isinstance(before, int | float) and isinstance(now, int | float) and now < before
