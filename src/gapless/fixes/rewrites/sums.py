"""``total += loss.item()`` adds up on the GPU, in the precision of Python, and is read where it is needed."""

from __future__ import annotations

import ast

from gapless.fixes.editing.editable import OtherForm, Refused
from gapless.fixes.editing.numbers_read import NumberKind, keep_on_gpu, kind_of_result, read_at
from gapless.fixes.editing.places import Draft, FixPlace, torch_name
from gapless.fixes.editing.variables import (
    Loop,
    Variable,
    assigned_value,
    find_variable,
    is_inside,
    read_back,
    widest_loop,
)
from gapless.model.fix import FixLevel
from gapless.uses.source_files import SourceFile

CODES = ("GAP101", "GAP109", "GAP122")
ORDER = 10  # first: a sum needs the least memory


def write(place: FixPlace) -> Draft:
    """Return the change of a read whose number is only added to a variable."""
    read, source = read_at(place), place.file.source
    statement = source.statement(read.call)
    target = sum_target(statement)
    if target is None:
        raise OtherForm("the number is not added to a variable")
    for each in source.chain(source.parents[read.call]):
        if each is statement:
            break
        if not isinstance(each, (ast.BinOp, ast.UnaryOp)):
            raise Refused("the number is not only added, but used in a call or a condition")
    variable = find_variable(source, target, place.program.script)
    own = any(is_inside(source, load, statement) for load in variable.loads)
    if own and isinstance(statement, ast.AugAssign):
        raise Refused(f"`{target.id}` is added to itself")
    loop = widest_loop(source, variable, statement)
    kind = _kind_of_sum(place, variable, loop)
    back = f"{target.id} = {kind}({target.id})"
    if kind == "float" and _may_end_whole(source, variable, loop):
        back = (
            f"{target.id} = {target.id}.item() if {torch_name(place)}.is_tensor({target.id}) else {target.id}"
        )
    edits = [*keep_on_gpu(place.file, read, kind), *read_back(place.file, variable, statement, loop, back)]
    precision = "in float64 as Python does" if kind == "float" else "as whole numbers"
    level: FixLevel = "rounding" if _divides(place, statement, target.id) else "exact"
    return Draft(f"add `{target.id}` up on the GPU, {precision}", tuple(edits), level)


def _divides(place: FixPlace, statement: ast.stmt, name: str) -> bool:
    """Whether a read or the variable is divided by a number: CUDA multiplies by the reciprocal instead."""
    return any(
        inner in place.program.reads or (isinstance(inner, ast.Name) and inner.id == name)
        for node in ast.walk(statement)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
        for inner in ast.walk(node.left)
    )


def sum_target(statement: ast.stmt) -> ast.Name | None:
    """Return the variable that a statement adds to: of ``x += …``, ``x -= …`` and ``x = … x …``."""
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, (ast.Add, ast.Sub)):
        return statement.target if isinstance(statement.target, ast.Name) else None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        if isinstance(target, ast.Name) and any(
            isinstance(node, ast.Name) and node.id == target.id for node in ast.walk(statement.value)
        ):
            return target
    return None


def _may_end_whole(file: SourceFile, variable: Variable, loop: Loop) -> bool:
    """Whether what is loaded behind the loop may be a whole number, which the loop has set last."""
    return any(not is_inside(file, load, loop) for load in variable.loads) and any(
        is_inside(file, store, loop) and type(getattr(assigned_value(file, store), "value", None)) is int
        for store in variable.stores
    )


def _kind_of_sum(place: FixPlace, variable: Variable, loop: Loop) -> NumberKind:
    """Return the kind of number that the variable holds.

    Raises:
        Refused: it is not known, or is no number.
    """
    source, kinds = place.file.source, set()
    for store in variable.stores:
        statement = source.statement(store)
        adds = sum_target(statement) is store
        value = statement.value if adds else assigned_value(source, store)  # type: ignore[attr-defined]
        if not is_inside(source, store, loop) and (adds or isinstance(statement, ast.AugAssign)):
            continue  # behind the loop it is a number again
        kind = None if value is None else kind_of_result(place.program, source, value, variable.name)
        if kind is None:
            raise Refused(f"what `{variable.name}` becomes at line {store.lineno} is not known")
        if adds or kind == "float":
            kinds.add(kind)
    return "float" if "float" in kinds else "int"
