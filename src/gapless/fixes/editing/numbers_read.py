"""A read of one number, and what it becomes where the number is only needed later."""

from __future__ import annotations

import ast
from typing import Literal, NamedTuple

from gapless.fixes.editing.editable import EditableFile, OtherForm, Refused
from gapless.fixes.editing.places import FixPlace, UserProgram, is_whole
from gapless.model.event import WaitedTensor
from gapless.model.fix import Edit
from gapless.uses.meaning import is_tensor, values_of
from gapless.uses.source_files import SourceFile, called_name, root_name

NumberKind = Literal["int", "float"]

_CONVERTING = ("float", "int")
_VIEWS = ("detach", "view", "reshape", "squeeze", "flatten", "cpu", "contiguous", "float")
"""Methods whose results may share memory with their tensor."""


class NumberRead(NamedTuple):
    """A call that reads one number: ``x.item()``, ``float(x)``; `subject` is ``x``."""

    call: ast.Call
    subject: ast.expr
    tensor: WaitedTensor


def read_at(place: FixPlace) -> NumberRead:
    """Return the read at `place`.

    Raises:
        Refused: the number is read in another way than by ``.item()``, ``float()`` or ``int()``.
    """
    return read_of(place.file.source, place.node, place.tensor)


def reading_call(file: SourceFile, node: ast.AST) -> ast.AST:
    """Return the call that takes the number of a copy to the CPU: ``x.cpu().item()``; otherwise `node`."""
    if isinstance(node, ast.Call) and called_name(node) == "cpu":
        above = file.parents.get(node)
        outer = file.parents.get(above) if isinstance(above, ast.Attribute) else None
        if isinstance(outer, ast.Call) and called_name(outer) == "item":
            return outer
    return node


def read_of(file: SourceFile, node: ast.AST, tensor: WaitedTensor) -> NumberRead:
    """Return the read at `node`, whose tensor is `tensor`; see `read_at`."""
    whole = is_whole(tensor)
    if tensor.dtype.startswith("complex"):
        raise Refused("the number is complex")
    node = reading_call(file, node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "item":
        subject = node.func.value
        while isinstance(subject, ast.Call) and called_name(subject) == "cpu":
            assert isinstance(subject.func, ast.Attribute)
            subject = subject.func.value
        if not node.args and not node.keywords:
            return NumberRead(node, subject, tensor)
    name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
    if isinstance(node, ast.Call) and name in _CONVERTING and len(node.args) == 1 and not node.keywords:
        if (name == "int") != whole:
            raise Refused(f"`{name}()` converts the number")
        if not isinstance(node.args[0], ast.Starred):
            return NumberRead(node, node.args[0], tensor)
    raise OtherForm("it is no `.item()`, `float()` or `int()`")


def keep_on_gpu(
    file: EditableFile, read: NumberRead, kind: NumberKind | None, clone: bool = False
) -> tuple[Edit, ...]:
    """Return the edits that leave the read's value on the GPU, outside of the graph of gradients.

    With a `kind` it has the precision with which Python computes: float64, or int64.
    """
    tensor, methods = read.tensor, []
    wide = {"float": "float64", "int": "int64", None: tensor.dtype}[kind]
    converts = wide != tensor.dtype
    if not is_whole(tensor) and not (
        isinstance(read.subject, ast.Call) and called_name(read.subject) == "detach"
    ):
        methods.append("detach()")
    if tensor.shape:
        methods.append("reshape(())")
    if converts:
        methods.append("double()" if kind == "float" else "long()")
    elif clone:
        methods.append("clone()")
    text, call = ".".join(methods), read.call
    start, end = file.span(call)
    if isinstance(call.func, ast.Attribute) and call.func.value is read.subject:
        return (file.replace_method(call, text),)
    inner = file.span(read.subject)
    if isinstance(call.func, ast.Attribute):  # behind `.cpu()`
        return (file.edit(inner[1], end, f".{text}" if text else ""),)
    atom = isinstance(read.subject, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
    left, right = ("", "") if atom else ("(", ")")
    return (
        file.edit(start, inner[0], left),
        file.edit(inner[1], end, right + (f".{text}" if text else "")),
    )


def kind_of_result(program: UserProgram, file: SourceFile, node: ast.expr, own: str) -> NumberKind | None:
    """Return of what kind the number `node` is in Python; None if that is unknown.

    The variable `own` keeps the kind of what is added to it.

    Only what torch computes as Python does has a kind: sums, products and quotients of numbers.
    """
    if node in program.reads:
        tensor = program.reads[node]
        return None if tensor is None else "int" if is_whole(tensor) else "float"
    if isinstance(node, ast.Constant):
        return "int" if type(node.value) is int else "float" if type(node.value) is float else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        return kind_of_result(program, file, node.operand, own)
    if isinstance(node, ast.BinOp):
        return _kind_of_operation(program, file, node, own)
    if isinstance(node, ast.Call) and called_name(node) in ("len", "size", "numel", "int"):
        return "int"
    if isinstance(node, ast.Call) and called_name(node) == "float":
        return "float"
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "shape"
    ):
        return "int"
    return None


def _kind_of_operation(
    program: UserProgram, file: SourceFile, node: ast.BinOp, own: str
) -> NumberKind | None:
    if not isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
        return None
    sides = [
        None if isinstance(side, ast.Name) and side.id == own else side for side in (node.left, node.right)
    ]
    kinds = [kind_of_result(program, file, side, own) for side in sides if side is not None]
    if isinstance(node.op, ast.Div):
        if sides[1] is None or any(inner in program.reads for inner in ast.walk(node.right)):
            return None  # by 0 Python raises, and the GPU does not
        return "float" if all(kinds) or _is_plain_divisor(file, node.right) else None
    if isinstance(node.op, ast.Mult) and len(kinds) < 2 and kinds != ["float"]:
        return None  # whole numbers that grow without bounds in Python alone
    if len(kinds) == 1:
        return kinds[0]
    if "float" in kinds and _is_plain_divisor(file, node.right if kinds[1] is None else node.left):
        return "float"
    return None if None in kinds else "float" if "float" in kinds else "int"


def _is_plain_divisor(file: SourceFile, node: ast.expr) -> bool:
    """Whether an expression of unknown kind leaves a float64 tensor what it is."""
    if not isinstance(node, (ast.Name, ast.Attribute)) or is_tensor(file, node):
        return False
    values = values_of(file, node) if isinstance(node, ast.Name) else []
    return not any(root_name(value) in ("np", "numpy") for value in values)


def may_be_overwritten(place: FixPlace, read: NumberRead) -> bool:
    """Whether the memory of what is read may hold another value later, so that a kept one must be a copy."""
    if any(use.changes for use in place.site.uses) or not place.site.uses:
        return not isinstance(read.subject, ast.Call) or called_name(read.subject) in _VIEWS
    text = place.file.data
    return any(word in text for word in (b"CUDAGraph", b"reduce-overhead", b"make_graphed_callables"))
