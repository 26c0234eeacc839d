"""``value = loss.item()`` that only some steps need is read in those steps."""

from __future__ import annotations

import ast

from gapless.fixes.editing.editable import OtherForm, Refused
from gapless.fixes.editing.numbers_read import keep_on_gpu, may_be_overwritten, read_at
from gapless.fixes.editing.places import Draft, FixPlace, is_whole
from gapless.fixes.editing.variables import find_variable, read_back, widest_loop

CODES = ("GAP101", "GAP109", "GAP122")
ORDER = 30  # behind sums and lists, which are assigned to names, too


def write(place: FixPlace) -> Draft:
    """Return the change of a number that is given a name and needed in few steps."""
    read, source = read_at(place), place.file.source
    statement = source.statement(read.call)
    if (
        not isinstance(statement, ast.Assign)
        or statement.value is not read.call
        or len(statement.targets) > 1
    ):
        raise OtherForm("the number is not given a name")
    target = statement.targets[0]
    if not isinstance(target, ast.Name):
        raise Refused("the number is kept elsewhere than in a variable")
    variable = find_variable(source, target, place.program.script)
    if len(variable.stores) > 1:
        raise Refused(f"`{target.id}` is set in several places")
    loop = widest_loop(source, variable, statement)
    kind = "bool" if read.tensor.dtype == "bool" else "int" if is_whole(read.tensor) else "float"
    back = read_back(place.file, variable, statement, loop, f"{target.id} = {kind}({target.id})")
    kept = keep_on_gpu(place.file, read, None, clone=may_be_overwritten(place, read))
    return Draft(f"read `{target.id}` in the steps that need it", (*kept, *back))
