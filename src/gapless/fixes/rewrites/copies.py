"""Batches are copied from pinned memory, with ``non_blocking=True``."""

from __future__ import annotations

import ast

from gapless.fixes.editing.editable import OtherForm, Refused
from gapless.fixes.editing.loaders import batch_loaders, pin_batches
from gapless.fixes.editing.places import Draft, FixPlace, has_open_options, import_ops, keyword_of
from gapless.model.copies import IMMEDIATE
from gapless.model.fix import Edit
from gapless.rules._code import is_device
from gapless.uses.source_files import names_in
from gapless.uses.unseen import changes_in_place

CODES = ("GAP120", "GAP121", "GAP123")
ORDER = 60  # behind those that need no copy at all


def write(place: FixPlace) -> Draft:
    """Return the change of a copy to the GPU that waits."""
    edits = non_blocking(place)
    if (place.site.detail == "pinned" or _is_batch(place)) and _changes_behind(place):
        raise Refused("what is copied is changed in place behind the copy, which may still run then")
    if place.site.detail == "pinned":
        if place.site.cause is not None and place.site.cause.refilled and not _is_batch(place):
            raise Refused("the pinned buffer is refilled: the next copy would have to wait for an event")
        return Draft("copy without waiting", edits, "exact" if _is_batch(place) else "tried")
    if place.site.detail == "strided":
        raise Refused("a part of a pinned tensor is copied through pageable memory")
    if _is_batch(place) and not any(loader.setting.pin for loader in batch_loaders(place)):
        return Draft("copy from pinned batches without waiting", (*edits, *pin_batches(place)))
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
    call, name, line = place.node, place.node.func.attr, place.site.line
    if name not in ("to", "cuda", "type"):
        raise OtherForm(f"`{name}` takes no `non_blocking`")
    if line is not None and (line.file, line.line, place.site.span) in place.program.copied_back:
        raise Refused("it also copies to the CPU, which must wait for its values")
    if place.site.deciding_frame is not None:
        raise Refused(f"{place.site.deciding_frame.library} copies what `.{name}()` is called on")
    value = keyword_of(call, "non_blocking")
    if isinstance(value, ast.Constant):
        return () if value.value else (place.file.replace(value, "True"),)
    if value is not None or has_open_options(call):
        raise Refused("whether the copy waits is decided elsewhere: its options are a variable")
    positional = 2 if name == "to" else 1
    if len(call.args) > positional or any(
        isinstance(argument, ast.Constant) and isinstance(argument.value, bool) for argument in call.args
    ):
        raise Refused("whether the copy waits is said without a name")
    return (place.file.add_argument(call, "non_blocking=True"),)


def _changes_behind(place: FixPlace) -> bool:
    """Whether a statement behind the copy changes the variable that is copied in place."""
    source = place.file.source
    owner = (
        place.node.func.value
        if isinstance(place.node, ast.Call) and isinstance(place.node.func, ast.Attribute)
        else None
    )
    statement = source.statement(place.node)
    if not isinstance(owner, ast.Name) or owner.id in names_in(statement, ast.Store):
        return False
    end = statement.end_lineno or statement.lineno
    return any(
        each.lineno > end and changes_in_place(source, each, owner.id)
        for each in ast.walk(source.scope(statement))
        if isinstance(each, ast.stmt)
    )


def _is_batch(place: FixPlace) -> bool:
    cause = place.site.cause
    return bool(place.site.batch) or (cause is not None and cause.kind == "batch")
