"""``Categorical(p)`` becomes ``Categorical(p, validate_args=False)``."""

from __future__ import annotations

import ast

from gapless.fixes.editing.editable import EditableFile, Refused
from gapless.fixes.editing.places import Draft, FixPlace, has_open_options, keyword_of
from gapless.model.fix import Edit
from gapless.uses.meaning import attribute_values, values_of
from gapless.uses.source_files import SourceFile, last_name, root_name
from gapless.uses.unseen import is_caught

CODES = ("GAP142",)

_PARAMETERS = 2
"""Positional arguments that are surely parameters: `validate_args` comes behind them."""


def write(place: FixPlace) -> Draft:
    """Return the change of a distribution that checks its arguments, also in its methods."""
    call, file = place.call(), place.file
    if _is_distribution(file.source, call):
        calls = [call]
    elif isinstance(call.func, ast.Attribute):
        calls = _makers(file.source, call.func.value)
    else:
        calls = []
    if not calls:
        raise Refused("where the distribution is made is not known")
    if any(is_caught(file.source, each) for each in (call, *calls)):
        raise Refused("the function handles what a check raises")
    return Draft("turn the checks of arguments off", tuple(_switch_off(file, each) for each in calls))


def _switch_off(file: EditableFile, call: ast.Call) -> Edit:
    """Return the edit that switches the checks of a distribution off.

    Raises:
        Refused: its arguments say something about them, or may.
    """
    value = keyword_of(call, "validate_args")
    by_position = len(call.args) > _PARAMETERS or any(
        isinstance(each, ast.Constant) and (each.value is None or isinstance(each.value, bool))
        for each in call.args
    )
    if value is None and not by_position and not has_open_options(call):
        return file.add_argument(call, "validate_args=False")
    raise Refused(f"`validate_args` is set at line {call.lineno}, or may be")


def _makers(file: SourceFile, owner: ast.expr) -> list[ast.Call]:
    """Return the calls that make the distribution `owner`; none if it may come from elsewhere."""
    if isinstance(owner, ast.Call):
        return [owner] if _is_distribution(file, owner) else []
    values = (
        values_of(file, owner)
        if isinstance(owner, ast.Name)
        else attribute_values(file, owner)
        if isinstance(owner, ast.Attribute)
        else []
    )
    calls = [value for value in values if isinstance(value, ast.Call) and _is_distribution(file, value)]
    return calls if len(calls) == len(values) else []


def _is_distribution(file: SourceFile, call: ast.Call) -> bool:
    """Whether `call` makes one of torch's distributions, by what the file imports."""
    name = last_name(call.func)
    if isinstance(call.func, ast.Name):
        module, imported = file.imports.get(name, ("", ""))
        return module.startswith("torch.distributions") and imported[:1].isupper()
    module, imported = file.imports.get(root_name(call.func), ("", ""))
    path = f"{module}.{imported}.{ast.unparse(call.func)}"
    return name[:1].isupper() and module.split(".")[0] == "torch" and "distributions" in path
