"""``x[index] = 1.0`` writes a number that is filled in on the GPU."""

from __future__ import annotations

import ast

from gapless.fixes.editing.editable import OtherForm, Refused
from gapless.fixes.editing.places import Draft, FixPlace, torch_name

CODES = ("GAP125",)


def write(place: FixPlace) -> Draft:
    """Return the change of a number that is written through an index."""
    file = place.file
    statement = file.source.statement(place.node)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        raise OtherForm("it is no assignment to one place")
    target, value = statement.targets[0], statement.value
    inner = value.operand if isinstance(value, ast.UnaryOp) else value
    if not isinstance(target, ast.Subscript) or not isinstance(inner, ast.Constant):
        raise Refused("what is written is no number in the code")
    if not isinstance(inner.value, (int, float)):
        raise Refused("what is written is no number in the code")
    if not isinstance(target.value, (ast.Name, ast.Attribute)):
        raise Refused("what is written to is no variable")
    owner = file.text(target.value)
    text = f"{torch_name(place)}.full((), {file.text(value)}, dtype={owner}.dtype, device={owner}.device)"
    return Draft("fill in the number on the GPU", (file.replace(value, text),))
