"""Batches are copied from pinned memory, with ``non_blocking=True``."""

from __future__ import annotations

import ast

from gapless.fixes.editing.editable import OtherForm, Refused
from gapless.fixes.editing.places import Draft, FixPlace, has_open_options, import_ops, keyword_of
from gapless.fixes.editing.variables import loops_around
from gapless.model.copies import IMMEDIATE
from gapless.model.fix import Edit
from gapless.model.loader_use import LoaderUse
from gapless.rules._code import is_device
from gapless.uses.meaning import values_of
from gapless.uses.source_files import SourceFile, last_name

CODES = ("GAP120", "GAP121", "GAP123")
ORDER = 60  # behind those that need no copy at all


def write(place: FixPlace) -> Draft:
    """Return the change of a copy to the GPU that waits."""
    edits = non_blocking(place)
    if place.site.detail == "pinned":
        if place.site.cause is not None and place.site.cause.refilled and not _is_batch(place):
            raise Refused("the pinned buffer is refilled: the next copy would have to wait for an event")
        return Draft("copy without waiting", edits, "exact" if _is_batch(place) else "tried")
    if place.site.detail == "strided":
        raise Refused("a part of a pinned tensor is copied through pageable memory")
    if _is_batch(place) and not any(loader.setting.pin for loader in _loaders(place)):
        return Draft("copy from pinned batches without waiting", (*edits, *_pin(place)))
    if 0 < place.bytes <= IMMEDIATE:
        return Draft("copy without waiting: so little is copied by the call itself", edits)
    return Draft("copy through pinned memory", _through_pinned_memory(place))


def _through_pinned_memory(place: FixPlace) -> tuple[Edit, ...]:
    """Return the edits that make ``ops.to_device(x, device)`` of ``x.to(device)``.

    Raises:
        Refused: the copy also converts, or where it goes is not sure.
    """
    call, file = place.call("to", "cuda"), place.file
    assert isinstance(call.func, ast.Attribute)
    device = next(iter(call.args), keyword_of(call, "device"))
    if len(call.args) + len(call.keywords) > 1 or (device is not None and not is_device(device)):
        raise Refused("the copy also converts, or where it goes is not sure")
    text = file.text(device) if device is not None else '"cuda"'
    start, end = file.span(call)
    inner = file.span(call.func.value)
    name = file.span(call.func)[1] - len(call.func.attr)
    rest = file.data[inner[1] : name].strip()
    if not rest.endswith(b".") or b"#" in rest:
        raise Refused("a comment stands within the call")
    closing = rest[:-1].decode().strip()
    return (
        file.edit(start, start, "ops.to_device("),
        file.edit(inner[1], end, f"{closing}, {text})"),
        *import_ops(place),
    )


def non_blocking(place: FixPlace) -> tuple[Edit, ...]:
    """Return the edits that make ``.to()`` or ``.cuda()`` not wait; none if it says so already.

    Raises:
        OtherForm: it is another call.
        Refused: its options are not written there.
    """
    if not isinstance(place.node, ast.Call) or not isinstance(place.node.func, ast.Attribute):
        raise OtherForm("it is no `.to()` or `.cuda()`")
    call, name = place.node, place.node.func.attr
    if name not in ("to", "cuda"):
        raise OtherForm(f"`{name}` takes no `non_blocking`")
    if place.site.deciding_frame is not None:
        raise Refused(f"{place.site.deciding_frame.library} copies what `.{name}()` is called on")
    value = keyword_of(call, "non_blocking")
    if isinstance(value, ast.Constant):
        return () if value.value else (place.file.replace(value, "True"),)
    if value is not None or has_open_options(call):
        raise Refused("whether the copy waits is decided elsewhere: its options are a variable")
    positional = 1 if name == "cuda" else 2
    if len(call.args) > positional or any(
        isinstance(argument, ast.Constant) and isinstance(argument.value, bool) for argument in call.args
    ):
        raise Refused("whether the copy waits is said without a name")
    return (place.file.add_argument(call, "non_blocking=True"),)


def _is_batch(place: FixPlace) -> bool:
    cause = place.site.cause
    return bool(place.site.batch) or (cause is not None and cause.kind == "batch")


def _pin(place: FixPlace) -> tuple[Edit, ...]:
    """Return the edits that make the batch's loader pin it; none if another edit of the same loader does.

    Raises:
        Refused: the loader, or where its arguments are, is not known.
    """
    edits: list[Edit] = []
    for loader in _loaders(place):
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


def _loaders(place: FixPlace) -> list[LoaderUse]:
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
