"""Where a read stands in the source, and what its value is used for."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from gapless.model.event import Mechanism
from gapless.model.source import SourceLine
from gapless.model.use import NamedTensors, Span, Use, UseKind
from gapless.uses import callees
from gapless.uses.flow import Flow
from gapless.uses.followed import FollowedValue, ReachedPlace
from gapless.uses.meaning import walked_tensor
from gapless.uses.resolving import CallGraph, Frame
from gapless.uses.source_files import Project, SourceFile, called_name, root_name
from gapless.uses.unseen import VIEWS, changes_in_place

_READERS = frozenset(
    {
        "item",
        "tolist",
        "cpu",
        "numpy",
        "float",
        "int",
        "bool",
        "complex",
        "to",
        "type",
        "round",
        "equal",
        "allclose",
        "is_nonzero",
    }
)
"""Calls whose result is the value that was read."""
_COPIERS = frozenset({"cpu", "to", "type"})
"""Those of `_READERS` whose result is a tensor on the CPU."""
_SELECTS = frozenset(
    {"nonzero", "argwhere", "where", "masked_select", "unique", "unique_consecutive", "unbind"}
)
_OWN_RULES = frozenset(
    {"repeat_interleave", "bincount", "histc", "one_hot", "masked_fill", "masked_fill_", "multinomial"}
)
"""Calls of which the operator's own rule knows what to write, whatever its result is for."""
_SHOWN = ("__format__", "__str__", "__repr__")
_NAMES = (ast.Name, ast.Attribute)
_UNKNOWN = NamedTensors()
_FILLS = ("full", "new_full")
_TRUTH = ("__bool__", "is_nonzero", "__contains__")


class RunningPlace(NamedTuple):
    """A line of a recorded stack, with the expression that was running there if that was recorded."""

    line: SourceLine
    span: Span | None = None


class ReadExpression(NamedTuple):
    """The expression that reads, as source text, and the uses of its value."""

    expression: str = ""
    uses: tuple[Use, ...] = ()


def read_uses(
    project: Project,
    places: Sequence[RunningPlace],
    mechanism: Mechanism,
    call: str,
    named: Sequence[NamedTensors] = (),
) -> ReadExpression:
    """Return what is read at the innermost of `places` and what for; empty if the source does not show it.

    `mechanism` and `call` are those of the `Site`; `places` are innermost first, with library frames.
    `named` are the tensors that the user's functions name there, innermost first.
    """
    frames = _frames(project, places)
    first = next(iter(frames), None)
    if first is None or first.node is None:
        return ReadExpression()
    file, node = first.file, first.node
    shown = node.test if isinstance(node, (ast.If, ast.While, ast.Assert)) else node
    expression = file.text(shown) if isinstance(shown, ast.expr) else ""
    own = named[0] if named else _UNKNOWN
    file.note_tensors(file.scope(node), own.on_gpu | own.on_cpu)
    flow = Flow(file, CallGraph(project, frames))
    if not _start(flow, file, node, mechanism, call.rpartition(".")[2]):
        return ReadExpression(expression)
    uses = flow.uses()
    operands = _operands(shown, mechanism) if _may_be_element(shown, mechanism) else ()
    if walked := next(filter(None, (walked_tensor(file, each, own) for each in operands)), ""):
        uses = (Use(kind="element", line=getattr(node, "lineno", 0), text=walked), *uses)
    if _may_change(flow.calls, file, _operand(node)):
        uses = tuple(msgspec.structs.replace(use, changes=True) for use in uses)
    running = [frame for frame in frames if frame is not None and frame.node is not None]
    by_scope: dict[tuple[SourceFile, ast.AST], NamedTensors] = {}
    for frame, tensors in zip(running, named, strict=False):
        by_scope[frame.file, frame.file.scope(frame.node or frame.file.tree)] = tensors
    return ReadExpression(expression, tuple(_place_operands(project, file, use, by_scope) for use in uses))


def _place_operands(
    project: Project, file: SourceFile, use: Use, named: Mapping[tuple[SourceFile, ast.AST], NamedTensors]
) -> Use:
    """Return `use` of a read in `file` with where the tensors are that its text names, by function."""
    used_in = project.file(use.file) if use.file else file
    tensors = named.get((used_in, used_in.scope_at(use.line))) if used_in is not None else None
    if tensors is None or "…" in use.text:
        return use
    try:
        names = {ast.unparse(each) for each in ast.walk(ast.parse(use.text)) if isinstance(each, _NAMES)}
    except SyntaxError:  # such as a clause of a statement
        return use
    on_gpu, on_cpu = (tuple(sorted(names & where)) for where in tensors)
    return msgspec.structs.replace(use, on_gpu=on_gpu, on_cpu=on_cpu)


def _may_change(calls: CallGraph, file: SourceFile, node: ast.AST) -> bool:
    """Whether the tensor `node` may change in place after it was read."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and called_name(node) in VIEWS:
        node = node.func.value
    if not isinstance(node, ast.Name):
        return isinstance(node, (ast.Attribute, ast.Subscript))
    if changes_in_place(file, file.scope(node), node.id):
        return True
    passed = calls.argument_of(file, node)
    return passed is not None and passed.node is not None and _may_change(calls, passed.file, passed.node)


def _frames(project: Project, places: Sequence[RunningPlace]) -> list[Frame | None]:
    """Return the user's frames with their expressions; None where a library's stands between."""
    frames: list[Frame | None] = []
    for place in places:
        if not place.line.is_user:
            if frames and not place.line.file.replace("\\", "/").endswith(callees.TRANSPARENT):
                frames.append(None)
            continue
        file = project.file(place.line.file)
        if file is None:
            frames.append(None)
            continue
        frames.append(Frame(file, find_expression(file, place)))
    return frames


def find_expression(file: SourceFile, place: RunningPlace) -> ast.AST | None:
    """Return the node at the place; without a span the only call or condition of its line that reads."""
    span = place.span
    if span is None:
        return _only_read(file, place.line.line)
    same_end = [
        node
        for node in ast.walk(file.tree)
        if isinstance(node, (ast.expr, ast.stmt))
        and not isinstance(node, ast.Expr)
        and (node.end_lineno, node.end_col_offset) == (span.end_line, span.end_column)
    ]
    exact = [node for node in same_end if (node.lineno, node.col_offset) == (span.line, span.column)]
    if exact:
        return exact[0]
    # In a chain of calls over several lines the span starts at the method's name.
    return next((node for node in same_end if isinstance(node, ast.Call)), None)


def _only_read(file: SourceFile, line: int) -> ast.AST | None:
    """Return the one call of a reader on `line`; None if there are several or none."""
    calls = [
        node
        for name in ("item", "tolist", "cpu", "numpy", "nonzero", "unique", "masked_select")
        for node in file.calls.get(name, ())
        if node.end_lineno == line and root_name(node.func) not in callees.NOT_CUDA_TENSORS
    ]
    return calls[0] if len(calls) == 1 else None


def _operand(node: ast.AST) -> ast.AST:
    """Return what a read reads: ``x`` of ``x.item()`` and of ``float(x)``."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            return node.func.value
        if len(node.args) == 1:
            return node.args[0]
    return node


def _operands(node: ast.AST, mechanism: Mechanism) -> Sequence[ast.AST]:
    """Return what may be read at `node`: its operand, an index, or any of a function's arguments."""
    if isinstance(node, ast.Subscript) and mechanism == "read":
        return (node.slice,)
    operand = _operand(node)
    if operand is node and isinstance(node, ast.Call):
        return (*node.args, *(option.value for option in node.keywords))
    return (operand,)


def _may_be_element(node: ast.AST, mechanism: Mechanism) -> bool:
    if mechanism == "size":
        return isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
    return isinstance(node, (ast.Call, ast.Name, ast.Subscript, ast.Compare, ast.BinOp)) and mechanism in (
        "read",
        "d2h",
    )


def _start(flow: Flow, file: SourceFile, node: ast.AST, mechanism: Mechanism, call: str) -> bool:
    """Follow the value from `node` on; False if what it is cannot be told or the operator's rule knows it."""
    name = called_name(node) if isinstance(node, ast.Call) else ""
    if name in _OWN_RULES:
        return False
    if mechanism == "size":
        if (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)) or name in _SELECTS:
            flow.follow(node, FollowedValue("selection"))
            return True
        return False
    if mechanism not in ("read", "d2h") or (mechanism == "d2h" and call == "__setitem__"):
        return False  # what is copied there is no index, but the value that is written
    if name in _READERS:
        finite = flow.calls.is_finiteness(file, node)
        copied = mechanism == "d2h" and name in _COPIERS
        flow.follow(node, FollowedValue("finite" if finite else "copy" if copied else "value"))
    elif call in _TRUTH:
        _start_truth(flow, file, node, name)
    elif (
        call in _SHOWN
        or isinstance(node, (ast.JoinedStr, ast.FormattedValue))
        or name in (*callees.SHOWS, *callees.TEXTS)
    ):
        _note(flow, file, node, "show")
    else:
        return _start_consumer(flow, file, node, name, call)
    return True


def _start_truth(flow: Flow, file: SourceFile, node: ast.AST, name: str) -> None:
    """Follow the truth of a tensor, for which Python asks at `node`."""
    if isinstance(node, (ast.If, ast.While, ast.Assert, ast.IfExp)):
        flow.follow(node.test, FollowedValue("compared"))
    elif isinstance(node, ast.Call) and name in ("min", "max", "sorted"):
        flow.follow(node, FollowedValue("value"))
    elif isinstance(node, (ast.Call, ast.Compare, ast.BoolOp, ast.UnaryOp)):
        flow.follow(node, FollowedValue("finite" if flow.calls.is_finiteness(file, node) else "compared"))
    elif isinstance(node, ast.expr):
        flow.follow(node, FollowedValue("compared"))


def _start_consumer(flow: Flow, file: SourceFile, node: ast.AST, name: str, call: str) -> bool:
    """Note the use that the expression itself is: a slice, a size, a loop's length."""
    if isinstance(node, ast.Subscript):
        bounds = any(isinstance(each, ast.Slice) for each in ast.walk(node.slice))
        _note(flow, file, node, "slice" if bounds else "index")
    elif name == "range":
        _note(flow, file, node, "range")
    elif name in callees.SIZES and not (name in _FILLS and isinstance(node, ast.Call) and _sizes_given(node)):
        _note(flow, file, node, "size")
    elif name in callees.RETENSOR or (name in callees.TENSOR_METHODS and call != "item"):
        _note(flow, file, node, "tensor")
    elif isinstance(node, ast.Call) and (root_name(node.func) == "math" or name in callees.THROUGH):
        flow.follow(node, FollowedValue("value"))
    else:
        return False
    return True


def _sizes_given(call: ast.Call) -> bool:
    """Whether the sizes of a `full` are numbers in the code: what it reads is the value to fill in."""
    size = call.args[0] if call.args else None
    parts = size.elts if isinstance(size, (ast.Tuple, ast.List)) else [size]
    return all(isinstance(part, ast.Constant) for part in parts)


def _note(flow: Flow, file: SourceFile, node: ast.AST, kind: UseKind) -> None:
    flow.add(ReachedPlace(file, node, 0, FollowedValue()), kind)
