"""Arguments of calls: what tells two calls apart for a compiler, and a copy small enough to keep."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

import torch

from gapless.torch_internals import DisableTorchDispatch

DeviceOf = Callable[[torch.Tensor], int]
"""Where a tensor is on the emulated machine: 0, 1, … for a GPU, below 0 for the CPU."""

_VALUES = frozenset(
    {int, float, bool, str, bytes, complex, NoneType, torch.dtype, torch.device, torch.Size, torch.layout}
)
_DEEPEST = 5
_FEW_BYTES = 1 << 20
_MANY_BYTES = 16 << 20
"""Up to here values are kept: of fractions, whose exact values decide little, and of integers, which index
and count."""
_MARK = "_dynamo_"


def signature(value: Any, device_of: DeviceOf, depth: int = 0) -> Any:
    """What of an argument a compiled function can be guarded on, as something that can be hashed.

    >>> signature(torch.zeros(2, 3), lambda tensor: -1)[1:3]
    (torch.Size([2, 3]), (3, 1))
    """
    kind = type(value)
    if kind in _VALUES:
        return kind, value
    if isinstance(value, torch.Tensor):
        strides = value.stride() if value.layout is torch.strided else ()
        return kind, value.shape, strides, value.dtype, device_of(value), value.requires_grad
    if isinstance(value, torch.nn.Module) or depth > _DEEPEST:
        return kind, id(value)
    if isinstance(value, list | tuple):
        return kind, *(signature(one, device_of, depth + 1) for one in value)
    if isinstance(value, dict):
        return kind, *((str(name), signature(one, device_of, depth + 1)) for name, one in value.items())
    if isinstance(value, set | frozenset):
        return kind, len(value)
    inside = getattr(value, "__dict__", None)
    if callable(value) or not inside or isinstance(value, type):
        return kind, id(value) if callable(value) else 0
    return kind, *((name, signature(one, device_of, depth + 1)) for name, one in inside.items())


@dataclass(frozen=True)
class Tensor:
    """A tensor as it was: `values` where they may matter and are small, `marks` that a compiler looks at."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: int
    requires_grad: bool
    values: torch.Tensor | None
    marks: dict[str, Any] = field(default_factory=dict)


class Keeper:
    """Copies arguments of one call, what is the same staying the same; nothing of the script's is kept alive
    for it but parameters, modules and what holds no tensor. Without `values` shapes alone are kept."""

    def __init__(self, device_of: DeviceOf, values: bool) -> None:
        self._device_of, self._values = device_of, values
        self._made: dict[int, Any] = {}

    def __call__(self, value: Any, depth: int = 0) -> Any:
        known = self._made.get(id(value))
        if known is not None:
            return known[1]
        made = self._kept(value, depth)
        if made is not value:
            self._made[id(value)] = value, made
        return made

    def _kept(self, value: Any, depth: int) -> Any:
        if isinstance(value, torch.Tensor):
            plain = type(value) is torch.Tensor and value.layout is torch.strided
            return self._tensor(value) if plain else value
        if type(value) in _VALUES or isinstance(value, torch.nn.Module | type) or depth > _DEEPEST:
            return value
        return over(value, lambda one: self(one, depth + 1))

    def _tensor(self, value: torch.Tensor) -> Tensor:
        size = value.numel() * value.element_size()
        most = _FEW_BYTES if value.is_floating_point() or value.is_complex() else _MANY_BYTES
        values = None
        if self._values and size <= most:
            with DisableTorchDispatch(), torch.no_grad():
                values = value.detach().clone()
        marks = {name: one for name, one in vars(value).items() if name.startswith(_MARK)}
        return Tensor(
            tuple(value.shape),
            value.stride(),
            value.dtype,
            self._device_of(value),
            value.requires_grad,
            values,
            marks,
        )


def over(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value` with `change` applied to what it holds: itself where nothing of it changes."""
    if isinstance(value, list | tuple):
        parts = [change(one) for one in value]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
    inside = value if isinstance(value, dict) else getattr(value, "__dict__", None)
    if not inside or callable(value):
        return value
    changed = {name: new for name, one in inside.items() if (new := change(one)) is not one}
    if not changed:
        return value
    made = copy.copy(value)
    for name, one in changed.items():
        if isinstance(made, dict):
            made[name] = one
        else:
            object.__setattr__(made, name, one)
    return made


class Rebuilder:
    """Makes arguments again of what `Keeper` kept; `place` says of each tensor on which device it was.
    Without `values` nothing is written into large ones, which then take no memory."""

    def __init__(self, place: Callable[[torch.Tensor, int], object], values: bool) -> None:
        self._place, self._values = place, values
        self._made: dict[int, Any] = {}

    def __call__(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in self._made:
                self._made[id(value)] = self._tensor(value)
            return self._made[id(value)]
        if (
            type(value) in _VALUES
            or isinstance(value, torch.Tensor | torch.nn.Module | type)
            or depth > _DEEPEST
        ):
            return value
        return over(value, lambda one: self(one, depth + 1))

    def _tensor(self, kept: Tensor) -> torch.Tensor:
        made = torch.empty_strided(kept.shape, kept.strides, dtype=kept.dtype)
        with torch.no_grad():
            if kept.values is not None:
                spread = all(
                    stride or size < 2 for stride, size in zip(kept.strides, kept.shape, strict=True)
                )
                made = made.copy_(kept.values) if spread else kept.values.clone()
            elif not self._values:
                pass
            elif kept.dtype.is_floating_point and made.numel():
                made.uniform_(-1, 1)
            else:
                made.zero_()
        self._place(made, kept.device)
        for name, mark in kept.marks.items():
            setattr(made, name, mark)
        return made.requires_grad_(kept.requires_grad)
