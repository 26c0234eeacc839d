"""``scaler.step(optimizer)`` does not wait for an optimizer with ``fused=True``."""

from __future__ import annotations

import ast

from gapless.fixes.editing.editable import Refused
from gapless.fixes.editing.places import Draft, FixPlace, has_open_options, keyword_of, qualified_name
from gapless.uses.meaning import attribute_values, values_of

CODES = ("GAP140",)

_FUSED = tuple(f"torch.optim.{name}" for name in ("Adam", "AdamW", "SGD", "Adagrad"))
"""Optimizers with a fused form that takes the scaler's flag on the GPU."""


def write(place: FixPlace) -> Draft:
    """Return the change of an optimizer's step that reads whether a gradient has overflowed."""
    call, source = place.call("step"), place.file.source
    optimizer = next(iter(call.args), None)
    values = (
        values_of(source, optimizer)
        if isinstance(optimizer, ast.Name)
        else attribute_values(source, optimizer)
        if isinstance(optimizer, ast.Attribute)
        else []
    )
    makers = [value for value in values if isinstance(value, ast.Call)]
    if len(makers) != 1 or qualified_name(place, makers[0].func) not in _FUSED:
        raise Refused("the optimizer is not made in one place of this file, by a class with a fused form")
    if has_open_options(makers[0]) or any(keyword_of(makers[0], name) for name in ("fused", "foreach")):
        raise Refused("the optimizer's arguments say how it computes, or may")
    edit = place.file.add_argument(makers[0], "fused=True")
    return Draft("let the fused optimizer skip the step on the GPU", (edit,), "tried")
