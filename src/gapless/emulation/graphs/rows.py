"""Whether stale rows of a graph input matter: whether the graph mixes rows, or masks them out."""

from __future__ import annotations

import math
from collections.abc import Iterable

from gapless.emulation.graphs.slots import GraphSlot, View
from gapless.emulation.graphs.tape import Tape, views


def rows_of(tape: Tape, slot: GraphSlot) -> int:
    """Return the number of rows of `slot` that its first reader takes; 0 if it has none."""
    for step in tape.steps:
        for view in views((step.args, step.kwargs)):
            if view.slot is slot:
                return view.size[0] if view.size else 0
    return 0


def mixes_rows(tape: Tape, slot: GraphSlot) -> bool:
    """Whether the graph combines rows of `slot`, as in a loss, a mean or the gradient of a weight.

    If each result row depends on one input row, stale rows only spoil results that nobody needs to read.
    """
    rows = rows_of(tape, slot)
    reached = {slot.number}
    for step in tape.steps:
        if reached.isdisjoint(view.slot.number for view in views((step.args, step.kwargs))):
            continue
        results = list(views(step.out))
        if not rows or any(math.prod(view.size) % rows for view in results):
            return True
        reached.update(view.slot.number for view in results)
    return False


def has_row_mask(tape: Tape, rows: int, written: Iterable[GraphSlot]) -> bool:
    """Whether a fully `written` input can say which rows are valid: a mask with one value per row, or an
    integer count."""
    numbers = {slot.number for slot in written}
    return any(
        _is_row_mask(view, rows)
        for step in tape.steps
        for view in views((step.args, step.kwargs))
        if view.slot.number in numbers
    )


def _is_row_mask(view: View, rows: int) -> bool:
    whole = not (view.dtype.is_floating_point or view.dtype.is_complex)
    return view.size[:1] == (rows,) or (math.prod(view.size) == 1 and whole)
