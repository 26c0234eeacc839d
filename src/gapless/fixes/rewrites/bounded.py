"""``bincount`` and ``one_hot`` with a bound that the code gives have a size that needs no values."""

from __future__ import annotations

from gapless.fixes.editing.editable import Refused
from gapless.fixes.editing.places import (
    Draft,
    FixPlace,
    has_open_options,
    import_ops,
    keyword_of,
    qualified_name,
)
from gapless.uses.unseen import is_caught

CODES = ("GAP116", "GAP117")


def write(place: FixPlace) -> Draft:
    """Return the change of a call whose size is given, so that it need not be read."""
    call, file = place.call(), place.file
    name = qualified_name(place, call.func)
    if name == "torch.nn.functional.one_hot" and len(call.args) + len(call.keywords) == 2:
        size = call.args[1] if len(call.args) == 2 else keyword_of(call, "num_classes")
        if size is not None and file.text(size) != "-1":
            if is_caught(file.source, call):
                raise Refused("the function handles what the check of the values raises")
            return Draft(
                "`ops.one_hot` checks no values", (file.replace(call.func, "ops.one_hot"), *import_ops(place))
            )
    size = keyword_of(call, "minlength")
    if name == "torch.bincount" and size is not None and not has_open_options(call):
        keyword = next(each for each in call.keywords if each.arg == "minlength")
        start = file.span(keyword)[0]
        edits = (
            file.replace(call.func, "ops.bincount"),
            file.edit(start, file.span(size)[0], "size="),
            *import_ops(place),
        )
        return Draft("count up to the given size, which all values must be below", edits, "tried")
    raise Refused("no bound is given there")
