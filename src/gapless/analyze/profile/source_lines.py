"""From the function that a profile names to the line in it that made the call, where the source lies at hand.

A traced Python frame has the line where its function begins, or the one that ran when the profiler started.
What it called is known, too: if one line only of the function's own text can be that call, it is the line.
Otherwise nothing is said that is not known.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache

import msgspec

from gapless.analyze.run.loop import parse
from gapless.model import Cost, Profile, Site, SourceLine, Stack
from gapless.model.profile import LineTime

Read = Callable[[str], str]
"""The text of a source file, "" where it cannot be had."""

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_UNTELLING = frozenset(
    {"__call__", "_call_impl", "_wrapped_call_impl", "__init__", "wrapper", "decorate_context"}
)
"""Functions that are called by another name than their own."""
_TAKES = ("aten::index",)
_PUTS = ("aten::index_put_", "aten::_index_put_impl_")


def with_source_lines(profile: Profile, read: Read) -> Profile:
    """`profile` with the user's lines told exactly, and their text, as far as the source tells them."""
    read = cache(read)
    costs: list[Cost] = [
        msgspec.structs.replace(cost, site=_site(cost.site, profile, read)) for cost in profile.costs
    ]
    lines: list[LineTime] = [
        msgspec.structs.replace(line, site=_site(line.site, profile, read)) for line in profile.lines
    ]
    return msgspec.structs.replace(profile, costs=tuple(costs), lines=tuple(lines))


def _site(site: Site, profile: Profile, read: Read) -> Site:
    frames = profile.recording.stacks == "frames"
    stack = _stack(site.stack, site, frames, read)
    # In backward the operator is another than the one that the forward line calls.
    forward = _stack(site.forward, Site(operator="", mechanism=site.mechanism), frames, read)
    if stack == site.stack and forward == site.forward:
        return site
    return msgspec.structs.replace(site, stack=stack, forward=forward)


def _stack(stack: Stack, site: Site, frames: bool, read: Read) -> Stack:
    """The stack with its innermost user frame told exactly; the others stay as recorded."""
    for position, frame in enumerate(stack):
        if not frame.is_user:
            continue
        called = stack[position - 1] if position else None
        told = _in_function(frame, called, site, read) if frames else _with_text(frame, read)
        return (*stack[:position], told, *stack[position + 1 :])
    return stack


def _with_text(frame: SourceLine, read: Read) -> SourceLine:
    """A line that is exact already, with its text, if the function is still there."""
    text = read(frame.file)
    lines = text.splitlines()
    if not 0 < frame.line <= len(lines):
        return frame
    around = [node for node in _functions(text) if node.lineno <= frame.line <= (node.end_lineno or 0)]
    name = around[-1].name if around else "<module>"
    if name != frame.function.rpartition(".")[2]:
        return frame
    return msgspec.structs.replace(frame, code=lines[frame.line - 1].strip())


def _in_function(frame: SourceLine, called: SourceLine | None, site: Site, read: Read) -> SourceLine:
    text = read(frame.file)
    function = _function(frame, text)
    if function is None:
        return frame  # other source than was recorded, or none
    numbers = {node.lineno for node in _own(function) if _may_be(node, called, site)}
    if len(numbers) != 1:
        return msgspec.structs.replace(frame, line=_begins(function))
    number = numbers.pop()
    return msgspec.structs.replace(frame, line=number, code=text.splitlines()[number - 1].strip())


def _function(frame: SourceLine, text: str) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.Module | None:
    """The function that a frame is of, None where the source does not have it.

    Of a function that was running when the profiler started, as the training loop is, it recorded the line
    that ran then: that of the step's end.
    """
    if frame.function == "<module>":
        return parse(text) if frame.line <= len(text.splitlines()) else None
    named = [node for node in _functions(text) if node.name == frame.function]
    begun = [node for node in named if _begins(node) == frame.line]
    inside = [node for node in named if node.lineno < frame.line <= (node.end_lineno or 0)]
    return next(iter([*begun, *reversed(inside)]), None)


def _functions(text: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions of a file, outer ones first."""
    tree = parse(text) or ast.Module([], [])
    found = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return sorted(found, key=lambda node: node.lineno)


def _begins(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Module) -> int:
    """The first line of a function as the interpreter counts: that of its first decorator."""
    if isinstance(node, ast.Module):
        return 1
    return min([node.lineno, *(one.lineno for one in node.decorator_list)])


def _own(function: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """The nodes of a function's body that run in its own frame."""
    for child in ast.iter_child_nodes(function):
        if isinstance(child, _SCOPES):
            continue
        if isinstance(child, (ast.expr, ast.stmt)):
            yield child
        yield from _own(child)


def _may_be(node: ast.expr | ast.stmt, called: SourceLine | None, site: Site) -> bool:
    """Whether `node` can be what called the function `called`, or (without one) made the wait."""
    if called is not None:
        name = called.function.rpartition(".")[2]
        return name not in _UNTELLING and not name.startswith("<") and _calls(node, name)
    if site.call.endswith("__bool__"):
        return _asks(node)
    if site.call:
        return _calls(node, site.call.rpartition(".")[2])
    # What no call was recorded for is done by the interpreter itself: an index or an operator.
    if site.operator in _PUTS:
        return _selects(node, ast.Store)
    if site.operator in _TAKES:
        updates = isinstance(node, ast.AugAssign) and _selects(node.target, ast.Store)
        return updates or _selects(node, ast.Load)
    return False


def _asks(node: ast.AST) -> bool:
    """Whether the interpreter asks for the truth of a value here."""
    if isinstance(node, ast.Compare):
        return len(node.ops) > 1 or isinstance(node.ops[0], (ast.In, ast.NotIn))
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        return any(part.ifs for part in node.generators)
    if isinstance(node, ast.Match):
        return any(case.guard is not None for case in node.cases)
    return isinstance(node, (ast.If, ast.While, ast.Assert, ast.IfExp, ast.BoolOp)) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    )


def _selects(node: ast.AST, context: type[ast.expr_context]) -> bool:
    """Whether `node` is a subscript that can be a mask or an index tensor."""
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.ctx, context)
        and not isinstance(node.slice, (ast.Constant, ast.Slice))
    )


def _calls(node: ast.AST, name: str) -> bool:
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    return (isinstance(function, ast.Attribute) and function.attr == name) or (
        isinstance(function, ast.Name) and function.id == name
    )
