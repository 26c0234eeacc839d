"""``value = loss.item()`` that only some steps need is read in those steps."""

from __future__ import annotations

import ast

from gapless.fixes.editing.editable import OtherForm, Refused
from gapless.fixes.editing.numbers_read import keep_on_gpu, may_be_overwritten, read_at
from gapless.fixes.editing.places import Draft, FixPlace, is_whole
from gapless.fixes.editing.variables import (
    Loop,
    Variable,
    block_of,
    find_variable,
    is_inside,
    read_back,
    widest_loop,
)
from gapless.uses.source_files import SourceFile

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
    if not _is_needed_behind(source, variable, loop):
        raise Refused(f"`{target.id}` may not be set behind the loop")
    kind = "bool" if read.tensor.dtype == "bool" else "int" if is_whole(read.tensor) else "float"
    back = read_back(place.file, variable, statement, loop, f"{target.id} = {kind}({target.id})")
    kept = keep_on_gpu(place.file, read, None, clone=may_be_overwritten(place, read))
    return Draft(f"read `{target.id}` in the steps that need it", (*kept, *back))


def _is_needed_behind(file: SourceFile, variable: Variable, loop: Loop) -> bool:
    """Whether a variable that is loaded behind `loop` surely is: otherwise the loop may not have set it."""
    outside = [load for load in variable.loads if not is_inside(file, load, loop)]
    block = block_of(file, loop)
    simple = [each for each in block[block.index(loop) + 1 :] if not hasattr(each, "body")]
    return not outside or any(is_inside(file, load, each) for load in outside for each in simple)
