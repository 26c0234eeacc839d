"""Determine how many steps a run will make, from the loops around a running step."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from gapless.analyze.run.loop import Loop, ReadSource, node_of, outside_torch, training_loops
from gapless.analyze.run.period import (
    ReadVariables,
    UnknownValue,
    Variables,
    evaluate,
    first_name,
    pass_count,
)
from gapless.files.input import source_text
from gapless.model import StepMark
from gapless.model.planned import Planned

COMPARED_STEPS = (3, 4)
"""Steps at which loop variables are compared: earlier ones may still be restarted."""
_MAX_SENSIBLE_STEPS = 10**8
"""A limit above this is not meant to be reached."""
_LIGHTNING = "FitLoop.run"
"""Lightning's function with the loop over epochs."""
_OWN_STEPS = "not self.trainer.strategy._lightning_module._automatic_optimization"
"""True in that function if the script's module steps its optimizers itself."""

Batches = Callable[[Loop], tuple[float, int]]
"""Returns batches per step and per pass of a loop over a DataLoader; zeros if unknown."""


@dataclass
class Planner:
    """Call with each step mark of a running script; `planned` is what its loops say."""

    look: ReadVariables
    batches: Batches = lambda loop: (0.0, 0)
    read: ReadSource = source_text
    planned: Planned = field(default_factory=Planned)
    _marks: list[StepMark] = field(default_factory=list)
    _before: dict[str, float] = field(default_factory=dict)

    def __call__(self, mark: StepMark, count: int) -> None:
        """Record `mark`, the end of step number `count`."""
        if count > COMPARED_STEPS[-1]:
            return
        mark = outside_torch(mark)
        self._marks.append(mark)
        if count not in COMPARED_STEPS:
            return
        loops = training_loops(self._marks[-2:], (), self.read)
        running = [(loop, names) for loop in loops if (names := self.look(loop)) is not None]
        counters = self._counters(running, mark)
        if count == COMPARED_STEPS[-1]:
            self.planned = self._plan(running, counters, count, mark)
        self._before = counters

    def _counters(self, running: Sequence[tuple[Loop, Variables]], mark: StepMark) -> dict[str, float]:
        """Return the numbers that decide whether a loop is left, and the values of loop variables."""
        numbers: dict[str, float] = {}
        for loop, names in running:
            for test in _exits(loop, self.read):
                for side in _sides(test):
                    number = _number_of(side, names)
                    if number is not None:
                        numbers[ast.unparse(side)] = number
            counter = _counter(loop.target, names)
            if counter is not None:
                numbers[f"{loop.file}:{loop.first}"] = counter
        return numbers

    def _plan(
        self, running: Sequence[tuple[Loop, Variables]], now: dict[str, float], count: int, mark: StepMark
    ) -> Planned:
        """Return the planned steps from the running loops and how their counters grew."""
        trainer_limits = [limit for loop, names in running if (limit := self._trainer_steps(loop, names))]
        if trainer_limits:
            return Planned(steps=trainer_limits[0])
        lengths = [self._length(loop, names) for loop, names in running]
        limits, leaves = [], False
        for level, (loop, names) in enumerate(running):
            for test in _exits(loop, self.read):
                bound, own = self._bound(test, names, now, count), first_name(loop.target)
                if (
                    bound and own and ast.unparse(_split_comparison(test)[0]) == own
                ):  # it restarts in each pass of the loop
                    lengths[level] = min(lengths[level] or bound[0], bound[0])
                elif bound:
                    limits.append(bound[1])
                else:
                    leaves = True
        whole = self._product(running, lengths, now)
        if limits and (not whole or min(limits) < whole):
            return Planned(steps=min(limits), most=leaves)
        if not whole or whole > _MAX_SENSIBLE_STEPS:
            return Planned()
        passes = lengths[1] if len(lengths) == 2 else 0
        return Planned(steps=whole, passes=passes, most=leaves)

    def _trainer_steps(self, loop: Loop, names: Variables) -> int:
        """Return the step limit in a variable of a library's training loop; 0 if there is none."""
        for frame in self._marks[-1].stack:
            if not frame.library or frame.file != loop.file:
                continue
            if frame.function.rpartition(".")[2] == "_inner_training_loop":  # of transformers
                return int(max(_evaluate_number("max_steps", names), 0))
            if frame.function.endswith(_LIGHTNING):
                return _lightning_steps(names)
        return 0

    def _product(
        self, running: Sequence[tuple[Loop, Variables]], lengths: Sequence[int], now: dict[str, float]
    ) -> int:
        """Return the passes of all loops multiplied, as steps; 0 if one is unknown."""
        if not running or not all(lengths):
            return 0
        whole = 1
        for each in lengths:
            whole *= each
        innermost = running[0][0]
        each_step, _ = self.batches(innermost)
        key = f"{innermost.file}:{innermost.first}"
        if key in now and key in self._before and now[key] > self._before[key]:
            each_step = now[key] - self._before[key]
        return round(whole / each_step) if each_step > 1 else whole

    def _length(self, loop: Loop, names: Variables) -> int:
        """Return the passes of `loop`; 0 if unknown."""
        node = node_of(loop, self.read)
        passes = pass_count(node.iter, names) if isinstance(node, ast.For) else 0
        return passes or self.batches(loop)[1]

    def _bound(
        self, test: ast.expr, names: Variables, now: dict[str, float], count: int
    ) -> tuple[int, int] | None:
        """Return the limit that `test` compares with, and the steps until the compared value reaches it.

        None if nothing is known to grow.
        """
        grows, limit = _split_comparison(test)
        name, bound = ast.unparse(grows), _number_of(limit, names)
        reached, before = now.get(name), self._before.get(name)
        if bound is None or reached is None or before is None or reached <= before:
            return None
        to_come = max(round((bound - reached) / (reached - before)), 0)
        counted_later = (
            reached == count - 1 and to_come > 0
        )  # the step that has just ended is not counted yet
        return int(bound), count + to_come - counted_later


def _lightning_steps(names: Variables) -> int:
    """Return the optimizer steps that a Lightning trainer's limits allow; 0 if endless or unknown."""
    batches, epochs = _evaluate_number("self.max_batches", names), _evaluate_number("self.max_epochs", names)
    most = _evaluate_number("self.epoch_loop.max_steps", names)
    together = max(int(_evaluate_number("self.trainer.accumulate_grad_batches", names)), 1)
    try:
        if evaluate(ast.parse(_OWN_STEPS, mode="eval").body, names):
            return 0
    except UnknownValue:
        return 0
    limits = [int(most)] if most > 0 else []
    if epochs > 0 and 0 < batches < math.inf:
        limits.append(math.ceil(batches / together) * int(epochs))
    return min(limits, default=0)


def _evaluate_number(expression: str, names: Variables) -> float:
    """Return the number that `expression` evaluates to; 0 if it is not a number, or unknown."""
    return _number_of(ast.parse(expression, mode="eval").body, names) or 0


def _split_comparison(test: ast.expr) -> tuple[ast.expr, ast.expr]:
    """Return what grows until the comparison `test` holds, and its limit; two constants for other tests."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        if isinstance(test.ops[0], ast.LtE | ast.Lt):
            return test.comparators[0], test.left
        if isinstance(test.ops[0], ast.GtE | ast.Gt | ast.Eq):
            return test.left, test.comparators[0]
    return ast.Constant(value=None), ast.Constant(value=None)


def _exits(loop: Loop, read: ReadSource) -> Iterator[ast.expr]:
    """Yield the conditions on which `loop` is left early."""
    node = node_of(loop, read)
    if isinstance(node, ast.While) and not (isinstance(node.test, ast.Constant) and node.test.value):
        yield from _negate(node.test)
    for statement in node.body if node is not None else ():
        yield from _exit_tests(statement, own=True)


def _negate(test: ast.expr) -> Iterator[ast.expr]:
    """Yield a ``while`` condition as that for leaving the loop: ``step < 100`` as ``100 <= step``."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Lt | ast.LtE):
        yield ast.Compare(left=test.left, ops=[ast.GtE()], comparators=test.comparators)
    else:
        yield test


def _exit_tests(statement: ast.stmt, own: bool) -> Iterator[ast.expr]:
    """Yield the tests under which `statement` leaves the loop: by ``return``, or by its `own` ``break``."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    inner_loop = isinstance(statement, ast.For | ast.AsyncFor | ast.While)
    for inner in _statements(statement):
        leaves = isinstance(inner, ast.Return) or (own and not inner_loop and isinstance(inner, ast.Break))
        if leaves:
            yield statement.test if isinstance(statement, ast.If) else ast.Constant(value=True)
        else:
            yield from _exit_tests(inner, own and not inner_loop)


def _statements(statement: ast.stmt) -> list[ast.stmt]:
    """Return the statements directly inside `statement`, handlers included."""
    nodes = [inner for part in ("body", "orelse", "finalbody") for inner in getattr(statement, part, ())]
    nodes += [inner for handler in getattr(statement, "handlers", ()) for inner in handler.body]
    return [inner for inner in nodes if isinstance(inner, ast.stmt)]


def _sides(test: ast.expr) -> list[ast.expr]:
    """Return both sides of a comparison; empty if `test` is none."""
    return [test.left, *test.comparators] if isinstance(test, ast.Compare) else []


def _number_of(node: ast.expr, names: Variables) -> float | None:
    """Return the number that `node` evaluates to; None if unknown or not a number."""
    try:
        number = evaluate(node, names)
    except UnknownValue:
        return None
    return number if isinstance(number, int | float) and not isinstance(number, bool) else None


def _counter(target: str, names: Variables) -> float | None:
    """Return the value of the first variable in a loop's `target` if it is a number."""
    name = first_name(target)
    loop_value = names.get(name) if name else None
    return loop_value if isinstance(loop_value, int) and not isinstance(loop_value, bool) else None
