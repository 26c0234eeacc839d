"""Masks: which elements count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Size, Tensor

from gapless.ops.dtypes import limits

Ignored: TypeAlias = "float | Sequence[float] | None"
"""A value that is not counted, several of them, or none."""


def not_ignored(target: Tensor, ignore_index: Ignored) -> Tensor:
    """Where `target` is none of the values of `ignore_index`: a bool tensor of its shape. NaN means NaN.

    Replaces::

        kept = ~torch.isin(target, torch.tensor([-1, 255], device="cuda"))     # copies the list
        kept = ops.not_ignored(target, [-1, 255])
    """
    kept = None
    for value in (value for value in each(ignore_index) if _holds(target.dtype, value)):
        differs = ~torch.isnan(target) if value != value else target != value
        kept = differs if kept is None else kept & differs
    return torch.ones_like(target, dtype=torch.bool) if kept is None else kept


def each(ignore_index: Ignored) -> Sequence[float]:
    """The values of `ignore_index`, however many."""
    if ignore_index is None:
        return ()
    return ignore_index if isinstance(ignore_index, Sequence) else (ignore_index,)


def _holds(dtype: torch.dtype, value: float) -> bool:
    """Whether an element of `dtype` can be `value`: comparing with what it cannot be would wrap around."""
    if dtype.is_floating_point or dtype.is_complex:
        return True
    least, most = limits(dtype)
    return least <= value <= most  # NaN is neither


def spread(mask: Tensor, shape: Size) -> Tensor:
    """`mask` as a view of `shape`, by the rules of broadcasting.

    Raises:
        ValueError: it is no bool tensor, or cannot be broadcast to `shape`.
    """
    require_bool(mask)
    if mask.dim() <= len(shape) and all(
        own in (1, other) for own, other in zip(reversed(mask.shape), reversed(shape), strict=False)
    ):
        return mask.expand(shape)
    hint = ""
    if mask.shape == shape[: mask.dim()]:
        missing = len(shape) - mask.dim()
        hint = f"; for a mask of the leading dimensions use mask[(...,) + (None,) * {missing}]"
    raise ValueError(f"a mask of shape {tuple(mask.shape)} does not broadcast to {tuple(shape)}{hint}")


def require_bool(mask: Tensor) -> None:
    """Refuse a mask that is not of dtype bool."""
    if mask.dtype != torch.bool:
        raise ValueError(f"expected a mask of dtype torch.bool, but got {mask.dtype}: compare first (x != 0)")


def leading(mask: Tensor, shape: Size) -> Tensor:
    """`mask`, whose dimensions are the first ones of `shape`, with a dimension of one for each other.

    Raises:
        IndexError: the dimensions are not the first ones of `shape`, as in ``x[mask]``.
    """
    require_bool(mask)
    if mask.shape != shape[: mask.dim()]:
        raise IndexError(
            f"a mask of shape {tuple(mask.shape)} does not match the leading dimensions of {tuple(shape)}"
        )
    return mask.reshape(mask.shape + (1,) * (len(shape) - mask.dim()))


def combined(mask: Tensor | None, target: Tensor, ignore_index: Ignored, shape: Size) -> Tensor | None:
    """The elements of `shape` that `mask` has and `ignore_index` leaves in `target`; None where all count."""
    kept = None if mask is None else spread(mask, shape)
    if ignore_index is None:
        return kept
    other = not_ignored(target, ignore_index)
    return other if kept is None else kept & other
