"""Change a run so that some allocations end earlier."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gapless.model.memory import DEFER, FREE, MemoryRun

_COPIED_COLUMNS = ("ident", "size", "stream", "place", "pool")


def free_earlier(run: MemoryRun, end_rows: Mapping[int, int]) -> MemoryRun:
    """Return `run` with each allocation freed earlier: `end_rows` maps its row to the row before which it
    ends.

    Columns that hold only for the recorded order (times, addresses, totals) are left out.
    """
    moved = {run.ident[start]: max(row, start + 1) for start, row in end_rows.items()}
    unfreed = {run.ident[start]: start for start in end_rows}
    order = []
    for row, (action, ident) in enumerate(zip(run.action, run.ident, strict=True)):
        if action in (FREE, DEFER) and ident in moved:
            order.append((2 * min(moved[ident], row), row, action))
            unfreed.pop(ident, None)
        else:
            order.append((2 * row + 1, row, action))
    order += [(2 * moved[ident], start, FREE) for ident, start in unfreed.items()]
    order.sort()
    columns = {
        name: tuple(column[row] for _, row, _ in order)
        for name in _COPIED_COLUMNS
        if (column := getattr(run, name))
    }
    unknown = ("time", "address", "used", "allocated", "reserved", "batches", "calls", "refusals")
    actions = tuple(action for *_, action in order)
    return msgspec.structs.replace(
        run, action=actions, recorded=None, **dict.fromkeys(unknown, ()), **columns
    )
