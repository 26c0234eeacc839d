"""``torch.cuda.FloatTensor(array)`` copies to the GPU without waiting."""

from __future__ import annotations

import ast

from gapless.fixes.editing.editable import OtherForm, Refused
from gapless.fixes.editing.places import Draft, FixPlace, torch_name
from gapless.model.copies import IMMEDIATE
from gapless.uses.meaning import values_of
from gapless.uses.source_files import last_name

CODES = ("GAP121",)
ORDER = 45  # behind constants, which need no copy


def write(place: FixPlace) -> Draft:
    """Return the change of a tensor of one of the types of old that are named for CUDA."""
    call, file = place.call(), place.file
    if not place.site.call.endswith("Tensor") or len(call.args) != 1 or call.keywords:
        raise OtherForm("it makes no tensor of a type for CUDA")
    names = {
        last_name(each)
        for value in (values_of(file.source, call.func) if isinstance(call.func, ast.Name) else [call.func])
        for each in ast.walk(value)
        if isinstance(each, ast.Attribute) and ast.unparse(each).startswith(f"{torch_name(place)}.")
        if last_name(each).endswith("Tensor")
    }
    if len(names) != 1:
        raise Refused("which type the tensor has is not clear")
    if not 0 < place.bytes <= IMMEDIATE:
        raise Refused("the array is too large to be copied by the call itself")
    kind, end = file.text(call.func), file.span(call)[1]
    edits = (
        file.replace(call.func, f"{torch_name(place)}.{names.pop()}"),
        file.edit(end, end, f".type({kind}, non_blocking=True)"),
    )
    return Draft("copy without waiting: so little is copied by the call itself", edits)
