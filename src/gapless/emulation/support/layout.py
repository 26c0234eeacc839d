"""How tensors lie in memory: which of their dimensions are neighbours."""

from __future__ import annotations

from typing import Any

import torch

from gapless.model.programme import Order

Tensor = torch.Tensor


def order(args: tuple[Any, ...], out: Any) -> Order:
    """How tensors of one shape lie to each other: `Entry.order`."""
    made = out if isinstance(out, Tensor) else args[0]
    worst: Order = "kept"
    for one in args[:3]:
        if isinstance(one, Tensor) and one is not made and one.shape == made.shape:
            found = _lies(one, made)
            if found == "turned":
                return found
            worst = found if found == "strided" else worst
    return worst


def _lies(one: Tensor, made: Tensor) -> Order:
    """How `one` lies to `made`, which has its shape. Dimensions of one element lie anywhere."""
    strides, others = one.stride(), made.stride()
    if strides == others:
        return "kept"
    same, near = True, False
    for size, stride, other in zip(made.shape, strides, others, strict=True):
        if size > 1:
            same = same and stride == other
            near = near or (other == 1 and stride <= 1)
    return "kept" if same else "strided" if near else "turned"


def row_order(given: Tensor) -> Order:
    """The same of what has to lie in the order of its dimensions."""
    if given.is_contiguous():
        return "kept"
    return "strided" if given.stride(-1) == 1 else "turned"


def channels_last(args: tuple[Any, ...]) -> bool:
    """Whether it runs with channels last: where what it is given or its weight has them so."""
    return any(has_channels_last(one) for one in args[:3] if isinstance(one, torch.Tensor))


def has_channels_last(tensor: Tensor) -> bool:
    """By the strides, as torch itself tells it: weights of 1×1 are contiguous in either way."""
    if tensor.dim() != 4:
        return False
    shape, strides, least = tensor.shape, tensor.stride(), 1
    for dimension in (1, 3, 2, 0):
        if strides[dimension] < least or (dimension == 0 and least == strides[1]):
            return False
        least = strides[dimension] * max(shape[dimension], 1)
    return True
