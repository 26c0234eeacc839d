"""``if bad: loss = other`` chooses on the GPU: ``loss = torch.where(bad, other, loss)``."""

from __future__ import annotations

import ast

from gapless.fixes.editing.editable import EditableFile, OtherForm, Refused
from gapless.fixes.editing.places import Draft, FixPlace, qualified_name, torch_name
from gapless.uses.source_files import called_name

CODES = ("GAP102",)

_TENSOR_METHODS = (
    "clone",
    "detach",
    "clamp",
    "float",
    "half",
    "mean",
    "sum",
    "abs",
    "new_zeros",
    "expand_as",
)
"""Methods that compute without changing anything."""


def write(place: FixPlace) -> Draft:
    """Return the change of a condition on a tensor that decides one assignment."""
    statement = place.file.source.statement(place.node)
    if not isinstance(statement, ast.If) or place.node not in (statement, statement.test):
        raise OtherForm("it is no condition of an `if`")
    file = place.file
    if place.tensor.shape:
        raise Refused("the condition is no single truth")
    chosen = _assignment(statement.body)
    other = _assignment(statement.orelse) if statement.orelse else None
    if chosen is None or (statement.orelse and other is None):
        raise Refused("the `if` does more than one assignment: only you can decide what must wait")
    name, value = chosen
    if other is not None and other[0] != name:
        raise Refused("the branches assign to different variables")
    for part in (value, other[1] if other is not None else value):
        _check_harmless(place, part)
    if not file.text(statement).startswith("if"):
        raise Refused("it is an `elif`, which runs only if the condition before it fails")
    if b"#" in file.data[slice(*file.span(statement))]:
        raise Refused("a comment stands within the `if`")
    file.indent(statement)
    otherwise = _text(file, name, other[1]) if other is not None else name
    text = (
        f"{name} = {torch_name(place)}.where({file.text(statement.test)}, "
        f"{_text(file, name, value)}, {otherwise})"
    )
    return Draft("choose on the GPU", (file.replace(statement, text),), "tried")


def _assignment(block: list[ast.stmt]) -> tuple[str, ast.stmt] | None:
    """Return the variable and the statement of a block that is one assignment."""
    statement = block[0]
    if len(block) > 1:
        return None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target: ast.expr = statement.targets[0]
    elif isinstance(statement, ast.AugAssign):
        target = statement.target
    else:
        return None
    return (target.id, statement) if isinstance(target, ast.Name) else None


def _text(file: EditableFile, name: str, statement: ast.stmt) -> str:
    """Return what a statement assigns to `name`."""
    assert isinstance(statement, (ast.Assign, ast.AugAssign))
    text = file.text(statement.value)
    if isinstance(statement, ast.Assign):
        return text
    operator = ast.unparse(ast.BinOp(ast.Name("a"), statement.op, ast.Name("b")))[1:-1]
    return f"{name}{operator}{file.primary(statement.value)}"


def _check_harmless(place: FixPlace, statement: ast.stmt) -> None:
    """Raise Refused if a branch does more than compute, so that it may not run in every step."""
    for node in ast.walk(statement):
        if isinstance(node, (ast.Await, ast.Yield, ast.NamedExpr)):
            raise Refused("a branch does more than compute")
        if isinstance(node, ast.Call) and called_name(node) not in _TENSOR_METHODS:
            name = qualified_name(place, node.func)
            if not name.startswith("torch.") or called_name(node).endswith("_"):
                raise Refused(f"a branch calls `{called_name(node)}`, which may do more than compute")
