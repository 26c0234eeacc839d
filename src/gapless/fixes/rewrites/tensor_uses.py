"""A number that only tensors compute with stays a tensor."""

from __future__ import annotations

import ast

from gapless.fixes.editing.editable import OtherForm, Refused
from gapless.fixes.editing.numbers_read import NumberRead, keep_on_gpu, read_at
from gapless.fixes.editing.places import Draft, FixPlace
from gapless.fixes.editing.variables import find_variable
from gapless.model.fix import Edit

CODES = ("GAP101", "GAP109")
ORDER = 35  # behind those that know more of what the number is for

_BOUNDS = {"max": "min", "min": "max"}
"""What ``clamp`` calls the bound that Python's function sets."""


def write(place: FixPlace) -> Draft:
    """Return the change of a read all of whose uses compute with tensors."""
    read, source = read_at(place), place.file.source
    uses = place.site.uses
    if not uses or any(use.kind != "tensor" for use in uses):
        raise OtherForm("the number is not only computed with")
    if any(use.changes for use in uses):
        raise Refused("the tensor may change in place before it is used")
    statement = source.statement(read.call)
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        variable = find_variable(source, statement.targets[0], place.program.script)
        if len(variable.stores) > 1:
            raise Refused(f"`{variable.name}` is set in several places")
    elif not isinstance(statement, (ast.Expr, ast.Return, ast.AugAssign)):
        raise Refused("what is done with the number is not an assignment")
    edits = _edits(place, read, statement)
    return Draft("compute with the tensor itself", edits, "tried")  # a tensor on the CPU would not go with it


def _edits(place: FixPlace, read: NumberRead, statement: ast.stmt) -> tuple[Edit, ...]:
    """Return the edits on the way from the read to its use; a bound becomes a ``clamp``.

    Raises:
        Refused: something on the way needs a number.
    """
    file, source = place.file, place.file.source
    kept = keep_on_gpu(file, read, None)
    node: ast.AST = read.call
    for each in source.chain(source.parents[read.call]):
        if each is statement or isinstance(each, ast.keyword):
            break
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name):
            bound = next((value for value in each.args if value is not node), None)
            if each.func.id not in _BOUNDS or len(each.args) != 2 or not isinstance(bound, ast.Constant):
                raise Refused(f"`{each.func.id}()` needs a number")
            if node is not read.call:
                raise Refused("what is bounded is computed there")
            start, end = file.span(each)
            inner = file.span(read.call)
            clamp = f".clamp({_BOUNDS[each.func.id]}={file.text(bound)})"
            return (file.edit(start, inner[0], ""), *kept, file.edit(inner[1], end, clamp))
        if isinstance(each, ast.Call):
            break
        if not isinstance(each, (ast.BinOp, ast.UnaryOp)):
            raise Refused("the number is used in another way on its way")
        node = each
    return kept
