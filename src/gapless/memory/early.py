"""A run as it would be if some of its allocations ended earlier."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gapless.model.memory import DEFER, FREE, MemoryRun

_COLUMNS = ("ident", "size", "stream", "place", "pool")


def freed_early(run: MemoryRun, before: Mapping[int, int]) -> MemoryRun:
    """`run` in which the allocation made in each row of `before` is freed just before the row given there.

    What only the recorded order of events bears out (times, addresses, what the device did) is left out.
    """
    moved = {run.ident[made]: max(row, made + 1) for made, row in before.items()}
    unfreed = {run.ident[made]: made for made in before}
    order = []
    for row, (action, ident) in enumerate(zip(run.action, run.ident, strict=True)):
        if action in (FREE, DEFER) and ident in moved:
            order.append((2 * min(moved[ident], row), row, action))
            unfreed.pop(ident, None)
        else:
            order.append((2 * row + 1, row, action))
    order += [(2 * moved[ident], made, FREE) for ident, made in unfreed.items()]
    order.sort()
    columns = {
        name: tuple(column[row] for _, row, _ in order) for name in _COLUMNS if (column := getattr(run, name))
    }
    unknown = ("time", "address", "used", "allocated", "reserved", "batches", "calls", "refusals")
    actions = tuple(action for *_, action in order)
    return msgspec.structs.replace(
        run, action=actions, recorded=None, **dict.fromkeys(unknown, ()), **columns
    )
