"""`Ramp`: integers that grow evenly along their axes, as most addresses do, without expanding them.

A kernel that loads through them reads a regular part of a storage, which is copied instead of gathered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

Tensor = torch.Tensor

_MIN_WINDOW_ELEMENTS = 256
"""Elements per row from which on copying windows is faster than gathering elements."""


@dataclass(frozen=True, slots=True)
class Ramp:
    """``base + Σ step · index`` over the axes of a block; the programs are in `base`.

    `steps` are pairs of a step and the size of the axis; along an axis with step 0 the numbers are those of
    `base`, one with another step has size 1 in `base`.
    """

    base: Tensor
    steps: tuple[tuple[int, int], ...]

    def full(self) -> Tensor:
        """Return all numbers as a tensor."""
        out = self.base
        for axis, (step, size) in enumerate(self.steps):
            if step:
                sizes = [1] * out.dim()
                sizes[axis + 1] = size
                out = out + (torch.arange(size, dtype=out.dtype) * step).view(sizes)
        return out

    def numel(self) -> int:
        """Return how many numbers are stored."""
        return self.base.numel()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the expanded tensor."""
        return (
            self.base.shape[0],
            *(
                size if step else kept
                for (step, size), kept in zip(self.steps, self.base.shape[1:], strict=True)
            ),
        )

    @property
    def dtype(self) -> torch.dtype:
        return self.base.dtype

    def dim(self) -> int:
        return self.base.dim()

    def expand_dims(self, axis: int) -> Ramp:
        """Return the ramp with a new axis at `axis` (axis 0 is that of the programs)."""
        steps = (*self.steps[: axis - 1], (0, 1), *self.steps[axis - 1 :])
        return Ramp(self.base.unsqueeze(axis), steps)

    def permute(self, axes: list[int]) -> Ramp:
        """Return the ramp with its axes permuted (that of the programs stays first)."""
        return Ramp(self.base.permute(axes), tuple(self.steps[axis - 1] for axis in axes[1:]))

    def to(self, dtype: torch.dtype) -> Ramp:
        """Return the ramp with integers of another type, which must be wide enough."""
        return Ramp(self.base.to(dtype), self.steps)


def make_ramp(start: int, end: int) -> Ramp:
    """Return the numbers from `start` to `end` (exclusive)."""
    return Ramp(
        torch.tensor([[start]], dtype=torch.int32), ((1, end - start),) if end - start > 1 else ((0, 1),)
    )


def expand_ramp(value: Any) -> Any:
    """Return a ramp as a tensor; any other value unchanged."""
    return value.full() if type(value) is Ramp else value


def add_ramps(a: Any, b: Any, sign: int = 1) -> Any:
    """Return ``a + b`` (or ``a - b``), as a ramp if one is and the other is constant along its axes."""
    if type(a) is not Ramp and type(b) is not Ramp:
        return a + b if sign == 1 else a - b
    if a.dim() != b.dim():
        return add_ramps(expand_ramp(a), expand_ramp(b), sign)
    none = ((0, 1),) * (a.dim() - 1)
    base_a, steps_a = (a.base, a.steps) if type(a) is Ramp else (a, none)
    base_b, steps_b = (b.base, b.steps) if type(b) is Ramp else (b, none)
    steps = []
    for axis, ((step_a, size_a), (step_b, size_b)) in enumerate(zip(steps_a, steps_b, strict=True)):
        if (step_a and base_b.shape[axis + 1] > 1) or (step_b and base_a.shape[axis + 1] > 1):
            return add_ramps(expand_ramp(a), expand_ramp(b), sign)
        step = step_a + sign * step_b
        if (step_a or step_b) and not step:  # they cancel, and the size would be lost
            return add_ramps(expand_ramp(a), expand_ramp(b), sign)
        steps.append((step, size_a if step_a else size_b) if step else (0, 1))
    return Ramp(base_a + base_b if sign == 1 else base_a - base_b, tuple(steps))


def multiply_ramp(a: Any, b: Any) -> Any:
    """Return ``a * b``, as a ramp if one is and the other is a single number."""
    if type(a) is not Ramp:
        a, b = b, a
    if type(a) is not Ramp or type(b) is Ramp or b.numel() != 1:
        return expand_ramp(a) * expand_ramp(b)
    factor = int(b)
    if factor == 0:
        return expand_ramp(a) * b
    return Ramp(
        a.base * b.view(1, *(1,) * (a.dim() - 1)), tuple((step * factor, size) for step, size in a.steps)
    )


def read_windows(flat: Tensor, at: Ramp) -> Tensor | None:
    """Return the elements of `flat` at `at`; None if some lie outside, or if gathering is as fast."""
    axes = [axis for axis, (step, _) in enumerate(at.steps, 1) if step]
    if not axes:
        return None
    sizes = [at.steps[axis - 1][1] for axis in axes]
    steps = [at.steps[axis - 1][0] for axis in axes]
    base = at.base
    if base.numel() == 0:
        return None
    low, high = (int(bound) for bound in torch.aminmax(base))
    reach = sum(step * (size - 1) for step, size in zip(steps, sizes, strict=True) if step > 0)
    if min(steps) < 0 or low < 0 or high + reach >= flat.numel():
        return None
    places = base.reshape(-1)
    count = places.numel()
    gap = 0 if count == 1 else (high - low) // (count - 1)
    if count == 1 or (gap > 0 and bool((places[1:] - places[:-1] == gap).all())):
        rows = flat.as_strided((count, *sizes), (gap, *steps), low).clone(
            memory_format=torch.contiguous_format
        )
    else:
        size = 1
        for axis_size in sizes:
            size *= axis_size
        if size < _MIN_WINDOW_ELEMENTS:
            return None
        rows = flat.as_strided((high - low + 1, *sizes), (1, *steps), low).index_select(0, places - low)
    kept = [axis for axis in range(base.dim()) if axis not in axes]
    rows = rows.view(*(base.shape[axis] for axis in kept), *sizes)
    order = [*kept, *axes]
    return rows.permute([order.index(axis) for axis in range(base.dim())])
