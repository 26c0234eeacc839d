"""The loaders of batches that are copied, and the edits that make them pin what they yield."""

from __future__ import annotations

import ast

from gapless.fixes.editing.editable import Refused
from gapless.fixes.editing.places import FixPlace, keyword_of
from gapless.fixes.editing.variables import loops_around
from gapless.model.fix import Edit
from gapless.model.loader_use import LoaderUse
from gapless.uses.meaning import values_of
from gapless.uses.source_files import SourceFile, last_name


def pin_batches(place: FixPlace) -> tuple[Edit, ...]:
    """Return the edits that make the batch's loader pin it; none if another edit of the same loader does.

    Raises:
        Refused: the loader, or where its arguments are, is not known.
    """
    edits: list[Edit] = []
    for loader in batch_loaders(place):
        if loader.setting.pin:
            continue
        if loader.made is None or loader.library:
            raise Refused(f"{loader.library or 'a library'} makes the DataLoader")
        file = place.program.files(loader.made.file)
        call = _making_call(file.source, loader.made.line)
        value = keyword_of(call, "pin_memory")
        if isinstance(value, ast.Constant) and not value.value:
            edits.append(file.replace(value, "True"))
        elif value is not None:
            raise Refused(f"`pin_memory` of the DataLoader at line {call.lineno} is a variable")
        elif any(option.arg is None for option in call.keywords):
            edits.append(_pin_options(place, file.source, call, loader))
        else:
            edits.append(file.add_argument(call, "pin_memory=True"))
    return tuple(edits)


def _pin_options(place: FixPlace, file: SourceFile, call: ast.Call, loader: LoaderUse) -> Edit:
    """Return the edit that pins where a loader's options come out of a dict.

    Raises:
        Refused: the dict is not written in one place of the file.
    """
    editable = place.program.files(file.path)
    for option in call.keywords:
        if option.arg is not None:
            continue
        values = values_of(file, option.value) if isinstance(option.value, ast.Name) else [option.value]
        display = values[0] if len(values) == 1 else None
        keys: list[tuple[object, ast.expr]] = []
        if isinstance(display, ast.Dict):
            keys = [
                (key.value if isinstance(key, ast.Constant) else None, value)
                for key, value in zip(display.keys, display.values, strict=True)
            ]
        elif isinstance(display, ast.Call) and last_name(display.func) == "dict" and not display.args:
            keys = [(each.arg, each.value) for each in display.keywords]
        else:
            raise Refused(f"the options of the DataLoader at line {call.lineno} are put together elsewhere")
        if any(name is None for name, _ in keys) or _grows(file, option.value):
            raise Refused(f"the options of the DataLoader at line {call.lineno} are put together elsewhere")
        pinned = next((value for name, value in keys if name == "pin_memory"), None)
        if pinned is not None:
            if isinstance(pinned, ast.Constant) and pinned.value is False:
                return editable.replace(pinned, "True")
            raise Refused(f"`pin_memory` of the DataLoader at line {call.lineno} is a variable")
    return editable.add_argument(call, "pin_memory=True")


def _grows(file: SourceFile, node: ast.expr) -> bool:
    """Whether a dict of options is changed after it was written."""
    if not isinstance(node, ast.Name):
        return False
    for each in ast.walk(file.tree):
        if isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Store):
            owner: ast.AST = each.value
        elif isinstance(each, ast.Attribute) and each.attr in ("update", "setdefault"):
            owner = each.value
        elif isinstance(each, ast.AugAssign):
            owner = each.target
        else:
            continue
        if isinstance(owner, ast.Name) and owner.id == node.id:
            return True
    return False


def batch_loaders(place: FixPlace) -> list[LoaderUse]:
    """Return the loaders whose batches are copied at `place`.

    Raises:
        Refused: that is not known.
    """
    loaders, cause = place.program.loaders, place.site.cause
    if cause is not None and cause.kind == "batch" and cause.line is not None:
        at = cause.line
        same = [each for each in loaders if each.asked and each.asked.where == at.where]
        if same:
            return same
    loops = loops_around(place.file.source, place.node)
    lines = {loop.iter.lineno for loop in loops if not isinstance(loop, ast.While)}
    around = [
        each
        for each in loaders
        if each.asked and each.asked.file == place.file.source.path and each.asked.line in lines
    ]
    if around:
        return around
    if len(loaders) == 1:
        return list(loaders)
    raise Refused("which DataLoader the batch comes from is not known")


def _making_call(file: SourceFile, line: int) -> ast.Call:
    """Return the call that makes a DataLoader at `line`.

    Raises:
        Refused: there are several, or none that bears its name.
    """
    named = [
        call
        for calls in file.calls.values()
        for call in calls
        if call.lineno <= line <= (call.end_lineno or line) and _is_loader(file, call)
    ]
    if len(named) != 1:
        raise Refused(f"which call at line {line} makes the DataLoader is not clear")
    return named[0]


def _is_loader(file: SourceFile, call: ast.Call) -> bool:
    name = last_name(call.func)
    return name.endswith("DataLoader") or file.imports.get(name, ("", ""))[1] == "DataLoader"
