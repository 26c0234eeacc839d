"""Memory layouts of tensors, compared by their strides."""

from __future__ import annotations

from typing import Any

import torch

from gapless.model.programme import Order

Tensor = torch.Tensor


def compare_order(args: tuple[Any, ...], out: Any) -> Order:
    """Return how the arguments' layouts compare with the result's: `Entry.order`, the worst of them."""
    result = out if isinstance(out, Tensor) else args[0]
    worst: Order = "kept"
    for tensor in args[:3]:
        if isinstance(tensor, Tensor) and tensor is not result and tensor.shape == result.shape:
            layout = _compare_layouts(tensor, result)
            if layout == "turned":
                return layout
            worst = layout if layout == "strided" else worst
    return worst


def _compare_layouts(tensor: Tensor, reference: Tensor) -> Order:
    """Compare the layouts of two tensors of one shape; dimensions of size 1 do not matter."""
    strides, reference_strides = tensor.stride(), reference.stride()
    if strides == reference_strides:
        return "kept"
    same, near = True, False
    for size, stride, reference_stride in zip(reference.shape, strides, reference_strides, strict=True):
        if size > 1:
            same = same and stride == reference_stride
            near = near or (reference_stride == 1 and stride <= 1)
    return "kept" if same else "strided" if near else "turned"


def compare_with_rows(tensor: Tensor) -> Order:
    """Compare the layout of `tensor` with a contiguous one."""
    if tensor.is_contiguous():
        return "kept"
    return "strided" if tensor.stride(-1) == 1 else "turned"


def channels_last(args: tuple[Any, ...]) -> bool:
    """Whether the operator runs in channels-last layout: its input or its weight has it."""
    return any(has_channels_last(tensor) for tensor in args[:3] if isinstance(tensor, torch.Tensor))


def has_channels_last(tensor: Tensor) -> bool:
    """Whether `tensor` is channels-last by its strides, as torch decides it; 1×1 weights are both."""
    if tensor.dim() != 4:
        return False
    shape, strides, least = tensor.shape, tensor.stride(), 1
    for dimension in (1, 3, 2, 0):
        if strides[dimension] < least or (dimension == 0 and least == strides[1]):
            return False
        least = strides[dimension] * max(shape[dimension], 1)
    return True
