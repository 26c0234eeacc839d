"""What the tests of this room draw: tensors, masks, and poison where nothing may look."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

POISON = (torch.nan, torch.inf, -torch.inf)


@dataclass(frozen=True)
class Masked:
    """A tensor, a mask of its shape, and the tensor with NaN or infinity at each place outside the mask."""

    x: Tensor
    mask: Tensor
    poisoned: Tensor


@st.composite
def masked(draw: st.DrawFn, shape: tuple[int, ...] | None = None, strided: bool = True) -> Masked:
    """Values of any shape and layout, with a mask of any density, none and all included."""
    if shape is None:
        shape = draw(st.lists(st.integers(0, 4), max_size=3).map(tuple))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    x = torch.randn(shape, generator=random, dtype=torch.float64)
    if draw(st.booleans()):
        x = x.round()  # equal values
    density = draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]))
    mask = torch.rand(shape, generator=random) < density
    if strided and draw(st.booleans()):
        x = x.transpose(0, -1).contiguous().transpose(0, -1) if x.dim() else x
        mask = torch.stack([mask, ~mask], -1)[..., 0]
    poison = torch.tensor(draw(st.lists(st.sampled_from(POISON), min_size=1, max_size=3)), dtype=x.dtype)
    at = torch.randint(0, len(poison), shape, generator=random)
    return Masked(x, mask, torch.where(mask, x, poison[at]))


def leaf(x: Tensor) -> Tensor:
    """`x` as something gradients arrive at."""
    return x.detach().clone(memory_format=torch.preserve_format).requires_grad_()


def gradient(result: Tensor, x: Tensor) -> Tensor:
    """What arrives at `x`, from unequal weights on the elements of `result`; zeros where nothing does."""
    ramp = torch.arange(1, result.numel() + 1, dtype=torch.float64).view(result.shape)
    if not result.requires_grad:
        return torch.zeros_like(x)
    (gradient_or_none,) = torch.autograd.grad(
        result, x, ramp.to(result.dtype), retain_graph=True, allow_unused=True
    )
    return torch.zeros_like(x) if gradient_or_none is None else gradient_or_none
