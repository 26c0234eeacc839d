"""Refine the function that a profile names to the line that made the call, if the source is available.

A traced Python frame has the line where its function begins, or the one that ran when the profiler started.
What it called is known, too: if only one line of the function can be that call, it is taken. Otherwise
the frame stays as recorded.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache

import msgspec

from gapless.analyze.run.loop import parse
from gapless.model import Cost, Profile, Site, SourceLine, Stack
from gapless.model.profile import LineTime

ReadSource = Callable[[str], str]
"""Returns the text of a source file, "" if it is not available."""

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_ALIASED_FUNCTIONS = frozenset(
    {"__call__", "_call_impl", "_wrapped_call_impl", "__init__", "wrapper", "decorate_context"}
)
"""Functions that are called by another name than their own."""
_INDEX_READS = ("aten::index",)
_INDEX_WRITES = ("aten::index_put_", "aten::_index_put_impl_")


def with_source_lines(profile: Profile, read: ReadSource) -> Profile:
    """Return `profile` with exact lines of the user's code and their text, as far as source is available."""
    read = cache(read)
    costs: list[Cost] = [
        msgspec.structs.replace(cost, site=_refine_site(cost.site, profile, read)) for cost in profile.costs
    ]
    lines: list[LineTime] = [
        msgspec.structs.replace(line, site=_refine_site(line.site, profile, read)) for line in profile.lines
    ]
    return msgspec.structs.replace(profile, costs=tuple(costs), lines=tuple(lines))


def _refine_site(site: Site, profile: Profile, read: ReadSource) -> Site:
    frames = profile.recording.stacks == "frames"
    stack = _refine_stack(site.stack, site, frames, read)
    # In backward the operator is not the one that the forward line calls.
    forward = _refine_stack(site.forward, Site(operator="", mechanism=site.mechanism), frames, read)
    if stack == site.stack and forward == site.forward:
        return site
    return msgspec.structs.replace(site, stack=stack, forward=forward)


def _refine_stack(stack: Stack, site: Site, frames: bool, read: ReadSource) -> Stack:
    """Refine the innermost user frame; the others stay as recorded."""
    for position, frame in enumerate(stack):
        if not frame.is_user:
            continue
        called = stack[position - 1] if position else None
        refined = _refine_in_function(frame, called, site, read) if frames else _with_text(frame, read)
        return (*stack[:position], refined, *stack[position + 1 :])
    return stack


def _with_text(frame: SourceLine, read: ReadSource) -> SourceLine:
    """Add the text to an exact line, if the function is still there."""
    text = read(frame.file)
    lines = text.splitlines()
    if not 0 < frame.line <= len(lines):
        return frame
    around = [node for node in _list_functions(text) if node.lineno <= frame.line <= (node.end_lineno or 0)]
    name = around[-1].name if around else "<module>"
    if name != frame.function.rpartition(".")[2]:
        return frame
    return msgspec.structs.replace(frame, code=lines[frame.line - 1].strip())


def _refine_in_function(
    frame: SourceLine, called: SourceLine | None, site: Site, read: ReadSource
) -> SourceLine:
    text = read(frame.file)
    function = _find_function(frame, text)
    if function is None:
        return frame  # the source differs from what was recorded, or is missing
    numbers = {node.lineno for node in _own_nodes(function) if _may_be(node, called, site)}
    if len(numbers) != 1:
        return msgspec.structs.replace(frame, line=_first_line(function))
    number = numbers.pop()
    return msgspec.structs.replace(frame, line=number, code=text.splitlines()[number - 1].strip())


def _find_function(
    frame: SourceLine, text: str
) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.Module | None:
    """Return the function of a frame, None if the source does not contain it.

    For a function that was already running when the profiler started, such as the training loop, the frame
    has the line that ran then: the end of a step.
    """
    if frame.function == "<module>":
        return parse(text) if frame.line <= len(text.splitlines()) else None
    same_name = [node for node in _list_functions(text) if node.name == frame.function]
    beginning = [node for node in same_name if _first_line(node) == frame.line]
    inside = [node for node in same_name if node.lineno < frame.line <= (node.end_lineno or 0)]
    return next(iter([*beginning, *reversed(inside)]), None)


def _list_functions(text: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the functions of a file, outer ones first."""
    tree = parse(text) or ast.Module([], [])
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return sorted(functions, key=lambda node: node.lineno)


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Module) -> int:
    """Return the first line of a function as the interpreter counts: that of its first decorator."""
    if isinstance(node, ast.Module):
        return 1
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _own_nodes(function: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Yield the nodes of a function's body that run in its own frame."""
    for child in ast.iter_child_nodes(function):
        if isinstance(child, _SCOPES):
            continue
        if isinstance(child, (ast.expr, ast.stmt)):
            yield child
        yield from _own_nodes(child)


def _may_be(node: ast.expr | ast.stmt, called: SourceLine | None, site: Site) -> bool:
    """Whether `node` can be the call of `called` or, without one, the cause of the wait."""
    if called is not None:
        name = called.function.rpartition(".")[2]
        return name not in _ALIASED_FUNCTIONS and not name.startswith("<") and _calls(node, name)
    if site.call.endswith("__bool__"):
        return _tests_truth(node)
    if site.call:
        return _calls(node, site.call.rpartition(".")[2])
    # Without a recorded call the interpreter itself caused it: an index or an operator.
    if site.operator in _INDEX_WRITES:
        return _selects(node, ast.Store)
    if site.operator in _INDEX_READS:
        updates = isinstance(node, ast.AugAssign) and _selects(node.target, ast.Store)
        return updates or _selects(node, ast.Load)
    return False


def _tests_truth(node: ast.AST) -> bool:
    """Whether the interpreter tests the truth of a value here."""
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
    """Whether `node` is a subscript that can hold a mask or an index tensor."""
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
