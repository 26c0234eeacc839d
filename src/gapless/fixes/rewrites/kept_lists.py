"""``losses.append(loss.item())`` keeps the tensor, and all of them are read at once behind the loop."""

from __future__ import annotations

import ast

from gapless.fixes.editing.editable import OtherForm, Refused
from gapless.fixes.editing.numbers_read import keep_on_gpu, may_be_overwritten, read_at
from gapless.fixes.editing.places import Draft, FixPlace, torch_name
from gapless.fixes.editing.variables import (
    Loop,
    Variable,
    assigned_value,
    blocks_that_read,
    find_variable,
    is_inside,
    loops_around,
    read_back,
    widest_loop,
)
from gapless.uses.source_files import SourceFile

CODES = ("GAP101", "GAP109", "GAP122")
ORDER = 20  # behind sums


def write(place: FixPlace) -> Draft:
    """Return the change of a read whose number is only appended to a list."""
    read, file, source = read_at(place), place.file, place.file.source
    append = source.parents.get(read.call)
    if (
        not isinstance(append, ast.Call)
        or not isinstance(append.func, ast.Attribute)
        or append.func.attr != "append"
        or append.args != [read.call]
        or not isinstance(source.parents.get(append), ast.Expr)
    ):
        raise OtherForm("the number is not appended to a list")
    name = append.func.value
    if not isinstance(name, ast.Name):
        raise Refused(f"`{source.text(name)}` may be used elsewhere")
    variable = find_variable(source, name, place.program.script)
    statement = source.statement(append)
    loads = tuple(load for load in variable.loads if not _ignores_elements(place, load))
    appends = [load for load in variable.loads if _method(place, load) in ("append", "extend", "insert")]
    if len(appends) > 1:
        raise Refused(f"`{name.id}` is filled in several places")
    variable = Variable(variable.name, variable.scope, variable.stores, loads)
    loop = widest_loop(source, variable, statement)
    empties = [store for store in variable.stores if _is_empty_list(assigned_value(source, store))]
    if len(empties) != len(variable.stores):
        raise Refused(f"`{name.id}` does not begin as an empty list")
    if any(len(getattr(source.statement(store), "targets", ())) > 1 for store in variable.stores):
        raise Refused(f"`{name.id}` has another name, too")
    if any(load.lineno < loop.lineno and not is_inside(source, load, loop) for load in loads):
        raise Refused(f"`{name.id}` is handed on before the loop")
    torch = torch_name(place)
    back = f"{name.id}[:] = {torch}.stack({name.id}).tolist() if {name.id} else []"
    edits = read_back(file, variable, statement, loop, back)
    if not _begins_anew(source, variable, statement, loop):
        raise Refused(f"`{name.id}` is read in between, and then filled on")
    kept = keep_on_gpu(file, read, None, clone=may_be_overwritten(place, read))
    return Draft(f"keep `{name.id}` on the GPU, read it at once", (*kept, *edits))


def _begins_anew(file: SourceFile, variable: Variable, statement: ast.stmt, loop: Loop) -> bool:
    """Whether the list is empty again whenever more is appended to it after it was read."""
    empties = [
        *variable.stores,
        *(
            each.value
            for each in file.attributes.get("clear", ())
            if isinstance(each.value, ast.Name) and each.value.id == variable.name
        ),
    ]
    blocks = blocks_that_read(file, variable, statement, loop)
    if not all(any(is_inside(file, empty, each) for each in block for empty in empties) for block in blocks):
        return False
    outer = loops_around(file, loop)
    return not outer or any(
        is_inside(file, empty, outer[0]) and not is_inside(file, empty, loop) for empty in empties
    )


def _is_empty_list(value: ast.expr | None) -> bool:
    return isinstance(value, ast.List) and not value.elts


def _method(place: FixPlace, load: ast.Name) -> str:
    parent = place.file.source.parents.get(load)
    return parent.attr if isinstance(parent, ast.Attribute) else ""


def _ignores_elements(place: FixPlace, load: ast.Name) -> bool:
    """Whether a load of the list needs none of its elements."""
    parent = place.file.source.parents.get(load)
    counts = isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id == "len"
    return counts or _method(place, load) in ("append", "clear")
