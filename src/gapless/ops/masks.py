"""Masks of the elements that count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Size, Tensor

from gapless.ops.dtypes import dtype_limits

Ignored: TypeAlias = "float | Sequence[float] | None"
"""A value that is not counted, several of them, or None."""


def not_ignored(target: Tensor, ignore_index: Ignored) -> Tensor:
    """Return where `target` is none of the values of `ignore_index`, as bool of its shape. NaN matches NaN.

    Replaces::

        kept = ~torch.isin(target, torch.tensor([-1, 255], device="cuda"))     # copies the list
        kept = ops.not_ignored(target, [-1, 255])
    """
    kept = None
    for value in (value for value in ignored_values(ignore_index) if _can_hold(target.dtype, value)):
        differs = ~torch.isnan(target) if value != value else target != value
        kept = differs if kept is None else kept & differs
    return torch.ones_like(target, dtype=torch.bool) if kept is None else kept


def ignored_values(ignore_index: Ignored) -> Sequence[float]:
    """Return the values of `ignore_index` as a sequence."""
    if ignore_index is None:
        return ()
    return ignore_index if isinstance(ignore_index, Sequence) else (ignore_index,)


def _can_hold(dtype: torch.dtype, value: float) -> bool:
    """Whether `dtype` can represent `value`: comparing with other values would wrap around."""
    if dtype.is_floating_point or dtype.is_complex:
        return True
    least, most = dtype_limits(dtype)
    return least <= value <= most  # false for NaN


def expand_mask(mask: Tensor, shape: Size) -> Tensor:
    """Return `mask` broadcast to `shape`, as a view.

    Raises:
        ValueError: it is not a bool tensor, or does not broadcast to `shape`.
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
    """Raise ValueError unless `mask` is of dtype bool."""
    if mask.dtype != torch.bool:
        raise ValueError(f"expected a mask of dtype torch.bool, but got {mask.dtype}: compare first (x != 0)")


def expand_leading_mask(mask: Tensor, shape: Size) -> Tensor:
    """Return `mask`, which has the leading dimensions of `shape`, with further dimensions of size 1.

    Raises:
        IndexError: its dimensions are not the leading ones of `shape`, as for ``x[mask]``.
    """
    require_bool(mask)
    if mask.shape != shape[: mask.dim()]:
        raise IndexError(
            f"a mask of shape {tuple(mask.shape)} does not match the leading dimensions of {tuple(shape)}"
        )
    return mask.reshape(mask.shape + (1,) * (len(shape) - mask.dim()))


def combine_masks(mask: Tensor | None, target: Tensor, ignore_index: Ignored, shape: Size) -> Tensor | None:
    """Return the mask of elements in `mask` whose `target` is not ignored; None if all count."""
    kept = None if mask is None else expand_mask(mask, shape)
    if ignore_index is None:
        return kept
    not_ignored_mask = not_ignored(target, ignore_index)
    return not_ignored_mask if kept is None else kept & not_ignored_mask
