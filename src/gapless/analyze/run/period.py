"""Find what a loop does less often than every step, and how far a run is from it."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gapless.analyze.run.loop import Loop, ReadSource, body_of, tree_of
from gapless.analyze.run.phases import phase_at, phase_of_name
from gapless.files.input import source_text
from gapless.model import SourceLine

_TRIVIAL_CALLS = re.compile(
    r"append|clear|close|debug|enumerate|float|flush|format|info|int|iter|join|len|log|max|min|next|perf_counter|"
    r"print|range|reset|round|set_description|set_epoch|set_postfix|str|sum|time|tqdm|train|update|warning|"
    r"write|zero_grad|zeros|zip"
)
"""Calls that are not worth running longer for."""
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_PLAIN_TYPES = (int, float, str, bool, type(None))

Variables = Mapping[str, object]
"""Names in a running function and their values."""
ReadVariables = Callable[[Loop], Variables | None]
"""Returns the variables of the running function that contains a loop; None if none is running."""


@dataclass(frozen=True)
class Recurring:
    """What the body of `loop`, `level` loops above the steps, does now and then.

    It happens when `test` is true, or in each pass if that is None.
    """

    name: str
    line: SourceLine
    level: int
    loop: Loop
    test: ast.expr | None = None

    @property
    def modulo(self) -> ast.BinOp | None:
        """The ``step % N`` in the test."""
        nodes = ast.walk(self.test) if self.test is not None else ()
        return next((n for n in nodes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod)), None)


def recurring(loops: Sequence[Loop], read: ReadSource = source_text) -> tuple[Recurring, ...]:
    """Return what recurs every N steps in the training loop, and in each pass of the loops around it."""
    by_place: dict[tuple[str, int], Recurring] = {}
    for level, loop in enumerate(loops):
        functions = _functions(loop, read)
        for statement in body_of(loop, read):
            for part in _in_statement(statement, loop, level, functions):
                by_place.setdefault((part.name, part.level if part.test is None else part.line.line), part)
    return tuple(by_place.values())


def _functions(loop: Loop, read: ReadSource) -> dict[str, str]:
    """Map functions of the loop's file to the phase they are by what they call, such as evaluation."""
    phases = {}
    for node in ast.walk(tree_of(loop.file, read) or ast.Module([], [])):
        if isinstance(node, ast.FunctionDef):
            called = [name for call in _calls(node.body) if (name := phase_of_name(call))]
            phases[node.name] = phase_of_name(node.name) or next(iter(called), "")
    return phases


def _in_statement(
    statement: ast.stmt, loop: Loop, level: int, functions: Mapping[str, str]
) -> Iterator[Recurring]:
    """Yield what recurs in `statement` of the loop's body, nested blocks included."""
    first, last = statement.lineno, statement.end_lineno or statement.lineno
    if level and first <= loop.inner[0] and loop.inner[1] <= last:
        if not isinstance(statement, ast.For | ast.AsyncFor | ast.While):
            for inner in _inner_statements(statement):
                yield from _in_statement(inner, loop, level, functions)
        return
    if isinstance(statement, ast.If) and _has_modulo(statement.test):
        name = _phase_of_calls(_calls(statement.body), functions)
        if name:
            yield Recurring(name, SourceLine(loop.file, first), level, loop, statement.test)
    elif isinstance(statement, ast.With | ast.Try | ast.If):
        for inner in _inner_statements(statement):
            yield from _in_statement(inner, loop, level, functions)
    elif level:
        calls = [call for call in _calls([statement]) if not _TRIVIAL_CALLS.fullmatch(call)]
        if calls:
            looped = isinstance(statement, ast.For | ast.While)
            name = _phase_of_calls(calls, functions) or phase_at(loop, first, looped)
            yield Recurring(name, SourceLine(loop.file, first), level, loop)


def _phase_of_calls(calls: Iterable[str], functions: Mapping[str, str]) -> str:
    """Return the first phase that `calls` name; "" if there is none."""
    return next((name for call in calls if (name := functions.get(call) or phase_of_name(call))), "")


def _inner_statements(statement: ast.stmt) -> list[ast.stmt]:
    """Return the statements directly inside a compound one, in all branches."""
    return [
        inner
        for field in ("body", "orelse", "finalbody")
        for inner in getattr(statement, field, ())
        if isinstance(inner, ast.stmt)
    ]


def _has_modulo(test: ast.expr) -> bool:
    """Whether `test` contains ``%``."""
    return any(isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) for node in ast.walk(test))


def _calls(body: Sequence[ast.stmt]) -> list[str]:
    """Return the names of the functions called in `body`, without what precedes the last dot."""
    called = [node.func for statement in body for node in ast.walk(statement) if isinstance(node, ast.Call)]
    return [
        func.attr if isinstance(func, ast.Attribute) else func.id
        for func in called
        if isinstance(func, ast.Attribute | ast.Name)
    ]


class UnknownValue(Exception):  # not an error, hence no such name
    """The value of an expression cannot be determined without running the script's code."""


def evaluate(node: ast.expr, names: Variables) -> Any:
    """Evaluate `node` if that needs only plain values: numbers, strings and stored attributes.

    Raises:
        UnknownValue: it needs more.
    """
    match node:
        case ast.Constant(value=constant):
            return constant
        case ast.Name(id=name):
            result = names.get(name, UnknownValue)
        case ast.Attribute(value=owner, attr=attr):
            result = _stored_attribute(_object(owner, names), attr)
        case ast.Subscript(value=owner, slice=index):
            container = _object(owner, names)
            result = (
                container.get(evaluate(index, names), UnknownValue)
                if type(container) is dict
                else UnknownValue
            )
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not evaluate(operand, names)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand, names)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            try:
                return _ARITHMETIC[type(op)](_number(left, names), _number(right, names))
            except ZeroDivisionError:
                raise UnknownValue from None
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            try:
                return _COMPARISONS[type(op)](evaluate(left, names), evaluate(right, names))
            except TypeError:
                raise UnknownValue from None
        case ast.BoolOp(op=op, values=parts):
            return _all_or_any(isinstance(op, ast.And), parts, names)
        case _:
            raise UnknownValue
    if not isinstance(result, _PLAIN_TYPES):
        raise UnknownValue
    return result


def _object(node: ast.expr, names: Variables) -> Any:
    """Return the object that a name or attribute refers to, without running code."""
    match node:
        case ast.Name(id=name):
            return names.get(name, UnknownValue)
        case ast.Attribute(value=owner, attr=attr):
            return _stored_attribute(_object(owner, names), attr)
    raise UnknownValue


def _stored_attribute(owner: object, attr: str) -> object:
    """Return an attribute stored in the object or its class; properties are not called."""
    classes = owner.__mro__ if isinstance(owner, type) else type(owner).__mro__
    try:
        own = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        own = {}
    kept = [own] if type(own) is dict else []
    return next((values[attr] for values in (*kept, *map(vars, classes)) if attr in values), UnknownValue)


def _number(node: ast.expr, names: Variables) -> Any:
    """Evaluate `node` as a number, else raise `UnknownValue`."""
    number = evaluate(node, names)
    if not isinstance(number, int | float):
        raise UnknownValue
    return number


def _all_or_any(every: bool, parts: Sequence[ast.expr], names: Variables) -> bool:
    """Evaluate ``and`` (`every`) or ``or`` of `parts` by those that are known."""
    truths = []
    for part in parts:
        try:
            truths.append(bool(evaluate(part, names)))
        except UnknownValue:
            continue
    if not truths:
        raise UnknownValue
    return all(truths) if every else any(truths)


def pass_count(node: ast.expr, names: Variables) -> int:
    """Return how many passes a loop over `node` has; 0 if only the script's code could tell."""
    match node:
        case ast.Call(func=ast.Name(id="range"), args=arguments) if arguments:
            try:
                return len(range(*(int(_number(argument, names)) for argument in arguments)))
            except (UnknownValue, ValueError):
                return 0
        case ast.Call(func=ast.Name(id="enumerate" | "tqdm" | "zip" | "iter"), args=[first, *_]):
            return pass_count(first, names)
        case ast.Name() | ast.Attribute():
            try:
                return _length_of(_object(node, names))
            except UnknownValue:
                return 0
    return 0


def first_name(target: str) -> str:
    """Return the first variable of a loop's target: ``i`` of ``i, (x, y)``."""
    return target.split(",")[0].strip("() ")


def stride(node: ast.expr, names: Variables) -> int:
    """Return what the variable of a loop over `node` grows by per pass; 0 if it does not count.

    >>> stride(ast.parse("range(0, 32, 8)", mode="eval").body, {})
    8
    """
    match node:
        case ast.Call(func=ast.Name(id="range"), args=[_, _, each]):
            try:
                return max(int(_number(each, names)), 0)
            except UnknownValue:
                return 0
        case ast.Call(func=ast.Name(id="range" | "enumerate")):
            return 1
        case ast.Call(func=ast.Name(id="tqdm"), args=[first, *_]):
            return stride(first, names)
    return 0


def _length_of(collection: object) -> int:
    """Return the length of a tensor, a built-in collection or a DataLoader; 0 if unknown."""
    kind = type(collection)
    if kind.__name__ == "Tensor" and kind.__module__ == "torch":
        shape = collection.shape  # type: ignore[attr-defined]
        return int(shape[0]) if len(shape) else 0
    plain = kind in (list, tuple, range, dict) or (
        kind.__name__ == "DataLoader" and kind.__module__.startswith("torch.utils.data")
    )
    try:
        return len(collection) if plain else 0  # type: ignore[arg-type]
    except TypeError:  # a DataLoader of an iterable data set
        return 0
