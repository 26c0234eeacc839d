"""Statistics as the states that TorchMetrics' own wrappers and collections look for in a metric.

They read and write states by name (``_defaults``, ``_reductions``, ``getattr``, ``setattr``). A statistic's
slot has the name that it has in ``metric_state``. What is read is a copy and what is written is copied, since
slots keep their storage, in which updates and resets happen.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics import declared
from gapless.metrics.core import Core
from gapless.metrics.rows import Rows
from gapless.metrics.statistic import Statistic, new_past


def defaults(metric: Core) -> dict[str, Any]:
    """What each slot is before the first update; an empty list for rows."""
    return {name: initial(part, slot) for name, part, slot in places(metric)}


def reductions(metric: Core) -> dict[str, Any]:
    """How two states of each slot become one; None where the statistic folds several slots together."""
    return {
        name: declared.BY_NAME.get(part.saved_slots[slot].reduction)
        if slot in part.saved_slots
        else declared.joined
        for name, part, slot in places(metric)
    }


def places(metric: Core) -> list[tuple[str, Statistic, str]]:
    """The slots of all statistics by name."""
    return [
        (f"{name}.{slot}", part, slot)
        for name, part in metric.statistics()
        for slot in part.saved_names()
        if slot != "clean"
    ]


def initial(part: Statistic, slot: str) -> Any:
    return part.saved_slots[slot].allocate(part.device) if slot in part.saved_slots else []


def place(metric: Core, name: str) -> tuple[Statistic, str] | None:
    """The statistic and the slot of this name, if it is one."""
    return next(((part, slot) for known, part, slot in places(metric) if known == name), None)


def taken(metric: Core, name: str) -> Any:
    """A copy of the state of this name; raises AttributeError where there is none."""
    found = place(metric, name)
    if found is None:
        raise AttributeError(f"{type(metric).__name__!r} object has no attribute {name!r}")
    part, slot = found
    saved = part.saved()
    if slot in part.saved_slots:
        return saved[slot].clone()
    return [saved[slot].clone()] if slot in saved else []


def put(metric: Core, name: str, value: Any) -> bool:
    """Make `value` the state of this name; False where there is none.

    Raises:
        ValueError: the rows are in storage of a fixed size.
    """
    found = place(metric, name)
    if found is None:
        return False
    part, slot = found
    if slot in part.slots:
        part.state[slot].copy_(value)
        part.settle(new_past())
    elif slot in part.saved_slots:
        part.load({**part.saved(), slot: torch.as_tensor(value)})
    elif isinstance(part, Rows):
        rows = value if isinstance(value, Tensor) else declared.joined(value) if value else None
        part.replace(slot, rows)
    return True
