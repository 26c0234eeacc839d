"""Tags on storages: where the values come from, and what was done with them; the user's names of tensors."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import FrameType
from typing import Any

import torch
from torch import nn

from gapless.emulation.support import stacks
from gapless.model.use import NamedTensors

Place = tuple[int, int]
"""A running line: ``(id(code), f_lasti)``, as in a `RawStack`."""

ORIGIN = "_gapless_origin"
"""Attribute of a storage: its `Tag`."""
SENT = "_gapless_sent"
"""Attribute of a storage: what was copied from it to the device last, by part."""
WALKED = "_gapless_walked"
"""Attribute of a storage on the device: the loop that walks over its elements."""
SHARED = "_gapless_shared"
"""Attribute of a storage: NumPy may write to it unseen."""

WRITES = "_gapless_writes"
"""Attribute of a storage: writes by operators, also those that leave a tensor's version as it is: through
``.data``, and in inference mode."""

NO_STORAGE = (NotImplementedError, RuntimeError, ValueError)
"""Errors of a tensor without a storage, as a sparse tensor is."""

_MAX_NAMING = 3
"""Functions of the user's, from the innermost on, whose variables are looked at."""

COPIED_BACK, BATCH, NUMPY, MADE = 4, 3, 2, 1
"""Strengths of origins: of several arguments' origins a result has the strongest."""


class Tag:
    """An origin: its strength, the call and the line, and the line where values may have left torch before.

    There is one object for each distinct origin, so that many storages share it. `tick` is when it was given
    to a new storage last; `meets` says that such a storage met one of another origin in an operator on the
    CPU.
    """

    __slots__ = ("meets", "name", "place", "source", "strength", "tick")

    def __init__(self, strength: int, name: str, place: Place | None, source: Place | None = None) -> None:
        self.strength, self.name, self.place, self.source = strength, name, place, source
        self.tick = -1
        self.meets = False


@cache
def keeps_attributes() -> bool:
    """Whether torch keeps attributes of a storage for as long as the storage lives (2.13 and later do)."""
    tensor = torch.empty(1)
    tensor.untyped_storage().__dict__[ORIGIN] = None
    return ORIGIN in tensor.untyped_storage().__dict__


def attributes_of(tensor: torch.Tensor) -> dict[str, Any] | None:
    """Return the attributes of a tensor's storage; None if it has none, as a sparse tensor has not."""
    try:
        attributes: dict[str, Any] = tensor.untyped_storage().__dict__
    except NO_STORAGE:
        return None
    return attributes


def tag_of(tensor: torch.Tensor) -> Tag | None:
    """Return the tag of a tensor's storage."""
    attributes = attributes_of(tensor)
    return attributes.get(ORIGIN) if attributes else None


def users_frame() -> FrameType | None:
    """Return the innermost running frame of the user's own code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if stacks.is_users(frame.f_code.co_filename):
            stacks.keep_code(frame.f_code)  # so that its id stays its own
            return frame
        frame = frame.f_back
    return None


def users_place() -> Place | None:
    """Return the innermost running line of the user's own code."""
    frame = users_frame()
    return None if frame is None else (id(frame.f_code), frame.f_lasti)


def tensors_by_name(state_of: Callable[[torch.Tensor], int]) -> tuple[NamedTensors, ...]:
    """Return the tensors that the user's innermost running functions name; `state_of` says where one is."""
    frame: FrameType | None = sys._getframe(1)
    named: list[NamedTensors] = []
    while frame is not None and len(named) < _MAX_NAMING:
        if stacks.is_users(frame.f_code.co_filename):
            named.append(_tensors_of(frame, state_of))
        frame = frame.f_back
    return tuple(named)


def _tensors_of(frame: FrameType, state_of: Callable[[torch.Tensor], int]) -> NamedTensors:
    """Return the tensors that one function names."""
    on_gpu, on_cpu = set(), set()
    for name, value in _named_values(frame):
        if isinstance(value, torch.Tensor):
            with contextlib.suppress(*NO_STORAGE):
                if state_of(value) >= 0:
                    on_gpu.add(name)
                elif value.dim():
                    on_cpu.add(name)
    return NamedTensors(frozenset(on_gpu), frozenset(on_cpu))


def _named_values(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Yield name and value of what a function's code can name, the attributes of its ``self`` included."""
    code, own = frame.f_code, stacks.variables(frame)
    for name in (*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars):
        if name in own:
            yield name, own[name]
        elif name in frame.f_globals:
            yield name, frame.f_globals[name]
    held = own.get("self")
    attributes = dict(getattr(held, "__dict__", None) or {})
    if isinstance(held, nn.Module):
        attributes |= held._parameters | held._buffers
    for name, value in attributes.items():
        yield f"self.{name}", value
