"""`Ramp`: whole numbers that grow evenly along their axes, as most addresses do, without writing them out.

What a kernel loads through them is a regular part of a storage, which is copied instead of gathered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

Tensor = torch.Tensor

_FEWEST = 256
"""Elements in a row of windows from which on copying windows is faster than gathering elements."""


@dataclass(frozen=True, slots=True)
class Ramp:
    """``base + Σ step · index`` over the axes of a block; the programs are in `base`.

    `steps` are pairs of a step and the size of the axis; an axis with step 0 is as `base` has it, one with
    another step has size 1 in `base`.
    """

    base: Tensor
    steps: tuple[tuple[int, int], ...]

    def full(self) -> Tensor:
        """All of them, as a tensor."""
        out = self.base
        for axis, (step, size) in enumerate(self.steps):
            if step:
                sizes = [1] * out.dim()
                sizes[axis + 1] = size
                out = out + (torch.arange(size, dtype=out.dtype) * step).view(sizes)
        return out

    def numel(self) -> int:
        """Numbers that were written out so far."""
        return self.base.numel()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape as a tensor."""
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
        """With a new axis at `axis` (that of the programs is 0)."""
        steps = (*self.steps[: axis - 1], (0, 1), *self.steps[axis - 1 :])
        return Ramp(self.base.unsqueeze(axis), steps)

    def permute(self, axes: list[int]) -> Ramp:
        """With its axes in another order (that of the programs stays in front)."""
        return Ramp(self.base.permute(axes), tuple(self.steps[axis - 1] for axis in axes[1:]))

    def to(self, dtype: torch.dtype) -> Ramp:
        """With numbers of another type, which have room for them."""
        return Ramp(self.base.to(dtype), self.steps)


def ramp(start: int, end: int) -> Ramp:
    """The numbers from `start` to `end` (exclusive)."""
    return Ramp(
        torch.tensor([[start]], dtype=torch.int32), ((1, end - start),) if end - start > 1 else ((0, 1),)
    )


def full(value: Any) -> Any:
    """A ramp written out; anything else as it is."""
    return value.full() if type(value) is Ramp else value


def added(a: Any, b: Any, sign: int = 1) -> Any:
    """``a + b`` (or ``a - b``): a ramp where one of them is, and the other is even along its axes."""
    if type(a) is not Ramp and type(b) is not Ramp:
        return a + b if sign == 1 else a - b
    if a.dim() != b.dim():
        return added(full(a), full(b), sign)
    none = ((0, 1),) * (a.dim() - 1)
    base_a, steps_a = (a.base, a.steps) if type(a) is Ramp else (a, none)
    base_b, steps_b = (b.base, b.steps) if type(b) is Ramp else (b, none)
    steps = []
    for axis, ((one, size), (two, other)) in enumerate(zip(steps_a, steps_b, strict=True)):
        if (one and base_b.shape[axis + 1] > 1) or (two and base_a.shape[axis + 1] > 1):
            return added(full(a), full(b), sign)
        step = one + sign * two
        if (one or two) and not step:  # they cancel, and the size would be lost
            return added(full(a), full(b), sign)
        steps.append((step, size if one else other) if step else (0, 1))
    return Ramp(base_a + base_b if sign == 1 else base_a - base_b, tuple(steps))


def multiplied(a: Any, b: Any) -> Any:
    """``a * b``: a ramp where one of them is, and the other is one number."""
    if type(a) is not Ramp:
        a, b = b, a
    if type(a) is not Ramp or type(b) is Ramp or b.numel() != 1:
        return full(a) * full(b)
    factor = int(b)
    if factor == 0:
        return full(a) * b
    return Ramp(
        a.base * b.view(1, *(1,) * (a.dim() - 1)), tuple((step * factor, size) for step, size in a.steps)
    )


def windows(flat: Tensor, at: Ramp) -> Tensor | None:
    """What is at `at` in `flat`, or None where it is not wholly inside, or where gathering is as fast."""
    axes = [axis for axis, (step, _) in enumerate(at.steps, 1) if step]
    if not axes:
        return None
    sizes = [at.steps[axis - 1][1] for axis in axes]
    steps = [at.steps[axis - 1][0] for axis in axes]
    base = at.base
    if base.numel() == 0:
        return None
    low, high = (int(one) for one in torch.aminmax(base))
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
        for one in sizes:
            size *= one
        if size < _FEWEST:
            return None
        rows = flat.as_strided((high - low + 1, *sizes), (1, *steps), low).index_select(0, places - low)
    kept = [axis for axis in range(base.dim()) if axis not in axes]
    rows = rows.view(*(base.shape[axis] for axis in kept), *sizes)
    order = [*kept, *axes]
    return rows.permute([order.index(axis) for axis in range(base.dim())])
