"""Present statistics as the states that TorchMetrics' own wrappers and collections look for in a metric.

They read and write states by name (``_defaults``, ``_reductions``, ``getattr``, ``setattr``). A slot has its
name in ``metric_state``. Reads and writes copy, because slots keep their storage.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics import declared
from gapless.metrics.core import Core
from gapless.metrics.rows import Rows
from gapless.metrics.statistic import Statistic, new_state_id


def defaults(metric: Core) -> dict[str, Any]:
    """Return the initial value of each slot; an empty list for rows."""
    return {name: initial_value(part, slot) for name, part, slot in slots_by_name(metric)}


def reductions(metric: Core) -> dict[str, Any]:
    """Return the reduce function of each slot; None where the statistic merges several slots together."""
    return {
        name: declared.REDUCE_FUNCTIONS.get(part.saved_slots[slot].reduction)
        if slot in part.saved_slots
        else declared.concatenate
        for name, part, slot in slots_by_name(metric)
    }


def slots_by_name(metric: Core) -> list[tuple[str, Statistic, str]]:
    """Return the name, the statistic and the slot of every state of `metric`."""
    return [
        (f"{name}.{slot}", part, slot)
        for name, part in metric.statistics()
        for slot in part.saved_state_names()
        if slot != "clean"
    ]


def initial_value(part: Statistic, slot: str) -> Any:
    return part.saved_slots[slot].allocate(part.device) if slot in part.saved_slots else []


def find_slot(metric: Core, name: str) -> tuple[Statistic, str] | None:
    """Return the statistic and the slot of the state `name`, if there is one."""
    return next(((part, slot) for slot_name, part, slot in slots_by_name(metric) if slot_name == name), None)


def copy_state(metric: Core, name: str) -> Any:
    """Return a copy of the state `name`; raise AttributeError if there is none."""
    address = find_slot(metric, name)
    if address is None:
        raise AttributeError(f"{type(metric).__name__!r} object has no attribute {name!r}")
    part, slot = address
    saved = part.saved_state()
    if slot in part.saved_slots:
        return saved[slot].clone()
    return [saved[slot].clone()] if slot in saved else []


def write_state(metric: Core, name: str, value: Any) -> bool:
    """Set the state `name` to `value`; return False if there is none.

    Raises:
        ValueError: the state holds rows in storage of a fixed size.
    """
    address = find_slot(metric, name)
    if address is None:
        return False
    part, slot = address
    if slot in part.slots:
        part.state[slot].copy_(value)
        part.set_state_id(new_state_id())
    elif slot in part.saved_slots:
        part.load({**part.saved_state(), slot: torch.as_tensor(value)})
    elif isinstance(part, Rows):
        rows = value if isinstance(value, Tensor) else declared.concatenate(value) if value else None
        part.replace(slot, rows)
    return True
