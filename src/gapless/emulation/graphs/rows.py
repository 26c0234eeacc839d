"""Whether stale rows of an input matter: what a graph makes of them, and if the script leaves them out."""

from __future__ import annotations

import math
from collections.abc import Iterable

from gapless.emulation.graphs.slots import Slot, View
from gapless.emulation.graphs.tape import Tape, views


def rows_of(tape: Tape, slot: Slot) -> int:
    """How many rows of `slot` the first launch takes that reads it; 0 where it reads no rows."""
    for step in tape.steps:
        for view in views((step.args, step.kwargs)):
            if view.slot is slot:
                return view.size[0] if view.size else 0
    return 0


def mixes(tape: Tape, slot: Slot) -> bool:
    """Whether the rows of `slot` come together in anything: a loss, a mean, the gradient of a weight.

    Where each row of a result is made of one row, the results of stale rows need only not be read.
    """
    rows = rows_of(tape, slot)
    reached = {slot.number}
    for step in tape.steps:
        if reached.isdisjoint(view.slot.number for view in views((step.args, step.kwargs))):
            continue
        made = list(views(step.out))
        if not rows or any(math.prod(view.size) % rows for view in made):
            return True
        reached.update(view.slot.number for view in made)
    return False


def leaves_out(tape: Tape, rows: int, written: Iterable[Slot]) -> bool:
    """Whether one of the inputs `written` as a whole can say which of the rows count: it has a value for each
    of them, as a mask, or is a whole number."""
    numbers = {slot.number for slot in written}
    return any(
        _tells(view, rows)
        for step in tape.steps
        for view in views((step.args, step.kwargs))
        if view.slot.number in numbers
    )


def _tells(view: View, rows: int) -> bool:
    whole = not (view.dtype.is_floating_point or view.dtype.is_complex)
    return view.size[:1] == (rows,) or (math.prod(view.size) == 1 and whole)
