"""Losses of torch.nn.functional for input and target of one shape, with a mask.

`mask` is a bool tensor that broadcasts to the input, and `ignore_index` a value of the target that does not
count, or several (NaN for missing targets). Elements that do not count affect neither loss nor gradient, even
if they are NaN or infinite. ``reduction="none"`` keeps the shape, with 0 for them. If no element counts, the
mean is NaN as in the reference, or `empty` if given, with a gradient of 0. For very sparse masks over large
tensors, selecting first can be faster in spite of its wait.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

from gapless.ops.dtypes import HALF_DTYPES
from gapless.ops.masks import Ignored, combine_masks


def mse_loss(
    input: Tensor,
    target: Tensor,
    mask: Tensor | None = None,
    *,
    ignore_index: Ignored = None,
    reduction: str = "mean",
    empty: float | None = None,
) -> Tensor:
    """Return the squared error of the elements that count, as ``F.mse_loss``.

    `input` and `target` have one shape, to which `mask`, a bool tensor, broadcasts. `ignore_index` is a value
    of the target that does not count, or several. ``"mean"`` and ``"sum"`` return a 0-dim tensor; ``"none"``
    keeps the shape, with 0 for elements that do not count. If none counts, the mean is NaN as in the
    reference, or `empty` if given, with a gradient of 0.

    Replaces::

        loss = F.mse_loss(input[mask], target[mask])
        loss = ops.mse_loss(input, target, mask)

    Raises:
        ValueError: the shapes differ, or the mask does not broadcast to them, or `reduction` is unknown.
    """
    return _masked_loss(F.mse_loss, input, target, mask, ignore_index, reduction, empty)


def l1_loss(
    input: Tensor,
    target: Tensor,
    mask: Tensor | None = None,
    *,
    ignore_index: Ignored = None,
    reduction: str = "mean",
    empty: float | None = None,
) -> Tensor:
    """Return the absolute error of the elements that count, as ``F.l1_loss``.

    `mask`, `ignore_index`, `reduction` and `empty` as in :func:`mse_loss`.

    Replaces::

        loss = F.l1_loss(input[mask], target[mask])
        loss = ops.l1_loss(input, target, mask)
    """
    return _masked_loss(F.l1_loss, input, target, mask, ignore_index, reduction, empty)


def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    mask: Tensor | None = None,
    *,
    beta: float = 1.0,
    ignore_index: Ignored = None,
    reduction: str = "mean",
    empty: float | None = None,
) -> Tensor:
    """Return the error, squared below `beta` and absolute above, as ``F.smooth_l1_loss``.

    `mask`, `ignore_index`, `reduction` and `empty` as in :func:`mse_loss`.

    Replaces::

        loss = F.smooth_l1_loss(boxes[positive], wanted[positive])
        loss = ops.smooth_l1_loss(boxes, wanted, positive.unsqueeze(-1))
    """
    return _masked_loss(
        partial(F.smooth_l1_loss, beta=beta), input, target, mask, ignore_index, reduction, empty
    )


def huber_loss(
    input: Tensor,
    target: Tensor,
    mask: Tensor | None = None,
    *,
    delta: float = 1.0,
    ignore_index: Ignored = None,
    reduction: str = "mean",
    empty: float | None = None,
) -> Tensor:
    """Return the Huber loss of the elements that count, as ``F.huber_loss``.

    `mask`, `ignore_index`, `reduction` and `empty` as in :func:`mse_loss`.

    Replaces::

        loss = F.huber_loss(input[mask], target[mask])
        loss = ops.huber_loss(input, target, mask)
    """
    return _masked_loss(
        partial(F.huber_loss, delta=delta), input, target, mask, ignore_index, reduction, empty
    )


def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    mask: Tensor | None = None,
    *,
    weight: Tensor | None = None,
    ignore_index: Ignored = None,
    reduction: str = "mean",
    empty: float | None = None,
) -> Tensor:
    """Return the cross entropy of probabilities with targets in [0, 1], as ``F.binary_cross_entropy``.

    `weight` broadcasts to the input. Elements that do not count may be outside [0, 1]. `mask`,
    `ignore_index`, `reduction` and `empty` as in :func:`mse_loss`.

    Replaces::

        loss = F.binary_cross_entropy(input[mask], target[mask])
        loss = ops.binary_cross_entropy(input, target, mask)
    """
    loss = partial(F.binary_cross_entropy, weight=weight)
    return _masked_loss(loss, input, target, mask, ignore_index, reduction, empty)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    mask: Tensor | None = None,
    *,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    ignore_index: Ignored = None,
    reduction: str = "mean",
    empty: float | None = None,
) -> Tensor:
    """Return the cross entropy of logits with targets, as ``F.binary_cross_entropy_with_logits``.

    `weight` and `pos_weight` broadcast to the input. `mask`, `ignore_index`, `reduction` and `empty` as in
    :func:`mse_loss`.

    Replaces::

        loss = F.binary_cross_entropy_with_logits(logits[mask], target[mask])
        loss = ops.binary_cross_entropy_with_logits(logits, target, mask)
    """
    loss = partial(F.binary_cross_entropy_with_logits, weight=weight, pos_weight=pos_weight)
    return _masked_loss(loss, input, target, mask, ignore_index, reduction, empty)


def _masked_loss(
    loss: Callable[..., Tensor],
    input: Tensor,
    target: Tensor,
    mask: Tensor | None,
    ignore_index: Ignored,
    reduction: str,
    empty: float | None,
) -> Tensor:
    require_reduction(reduction)
    if input.shape != target.shape:
        raise ValueError(
            f"input and target must have the same shape, but got {tuple(input.shape)} and "
            f"{tuple(target.shape)}"
        )
    kept = combine_masks(mask, target, ignore_index, input.shape)
    if kept is None:
        kept = torch.ones_like(input, dtype=torch.bool)
    # Masked before the loss, so that no infinity times 0 reaches a gradient, and after it for the sum.
    errors = loss(torch.where(kept, input, 0), torch.where(kept, target, 0), reduction="none")
    return reduce_errors(torch.where(kept, errors, 0), kept, reduction, empty)


def require_reduction(reduction: str) -> None:
    """Raise ValueError unless `reduction` is ``"none"``, ``"mean"`` or ``"sum"``."""
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")


def reduce_errors(errors: Tensor, counted: Tensor, reduction: str, empty: float | None = None) -> Tensor:
    """Reduce `errors`, which are 0 where they do not count; `counted` are bools, or weights to divide by."""
    if reduction == "none":
        return errors
    total = _sum_wide(errors)
    if reduction == "mean":
        count = _sum_wide(counted)
        total = total / count
        if empty is not None:
            total = torch.where(count != 0, total, empty)
    return total.to(errors.dtype)


def _sum_wide(values: Tensor) -> Tensor:
    """Sum `values`, half precision in float32."""
    return values.sum(dtype=torch.float32 if values.dtype in HALF_DTYPES else None)
