"""``meter.update(loss.item(), n)`` hands the tensor on: a meter that only adds copes with it."""

from __future__ import annotations

import ast

from gapless.fixes.editing.editable import OtherForm, Refused
from gapless.fixes.editing.numbers_read import keep_on_gpu, read_at
from gapless.fixes.editing.places import Draft, FixPlace, is_whole

CODES = ("GAP101", "GAP109")
ORDER = 70  # behind those that know what the number is for

_METHODS = ("update", "add", "log_value", "record")
"""Methods of objects that add up what they get, by their usual names."""
_DECIDES = ("condition", "stop", "size", "slice", "range", "index", "key", "best", "check", "finite", "numpy")
"""Uses with which nothing would be won, since they read the tensor at once."""


def write(place: FixPlace) -> Draft:
    """Return the change of a number that an object of the project adds up."""
    read, source = read_at(place), place.file.source
    call = source.parents[read.call]
    if (
        not isinstance(call, ast.Call)
        or read.call not in call.args
        or not isinstance(call.func, ast.Attribute)
        or call.func.attr not in _METHODS
    ):
        raise OtherForm("the number is used at once")
    if any(use.kind in _DECIDES for use in place.site.uses):
        raise Refused(f"`{call.func.attr}` decides something by the number")
    if not place.frequency.in_steps or place.frequency.rare:
        raise Refused("it is not read in every step")
    edits = keep_on_gpu(place.file, read, "int" if is_whole(read.tensor) else "float")
    return Draft("hand the tensor on: it is read where it is shown", edits, "tried")
