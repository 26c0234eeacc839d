"""Losses of class scores, with a mask and any number of ignored labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

from gapless.ops.losses import reduce_errors, require_reduction
from gapless.ops.masks import combine_masks, ignored_values

_IGNORED_LABEL = -100
"""The label that replaces all ignored ones: torch's own default."""


class _MaskedGradient(torch.autograd.Function):
    """Identity with a gradient of 0 outside a mask.

    A NaN in logits outside the mask is not used, but would reach their gradient as 0 times NaN. Setting them
    to 0 beforehand would copy all logits.
    """

    @staticmethod
    def forward(x: Tensor, mask: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return torch.where(mask, grad, 0), None


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    ignore_index: int | Sequence[int] = _IGNORED_LABEL,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: float | None = None,
) -> Tensor:
    """Return the cross entropy of logits (N, C, ...) or (C,) as ``F.cross_entropy``, over positions that
    count.

    `target` holds class indices (N, ...) or probabilities of the shape of `input`. A position counts where
    `mask`, a bool tensor that broadcasts to (N, ...), is true and the label is none of `ignore_index`.
    Logits elsewhere, NaN and infinity included, reach neither loss nor gradient. ``reduction="none"`` keeps
    the shape (N, ...), with 0 at positions that do not count.

    Replaces::

        loss = F.cross_entropy(logits[mask], target[mask])            # mask (N,), logits (N, C)
        loss = F.cross_entropy(logits, target, weight, label_smoothing=0.1)   # selects inside, and waits
        loss = ops.cross_entropy(logits, target, weight, mask=mask, label_smoothing=0.1)

    If nothing counts, the mean is NaN as in the reference, or `empty` if given; the gradient is 0. With one
    ignored label, finite logits and no smoothing, ``F.cross_entropy(ignore_index=...)`` does the same with
    one pass less over the gradient. For very sparse masks over large tensors, selecting first can be faster.

    Raises:
        RuntimeError: as ``F.cross_entropy``, for shapes, dtypes and labels (on a GPU, labels out of range
            fail later, with a device-side assertion).
        ValueError: the mask does not broadcast to the positions, or `reduction` is unknown.
    """
    require_reduction(reduction)
    class_dim = min(input.dim() - 1, 1)
    as_probabilities = target.is_floating_point() and target.shape == input.shape
    positions = input.select(class_dim, 0) if as_probabilities else target
    if as_probabilities:
        if any(value >= 0 for value in ignored_values(ignore_index)):
            raise RuntimeError(
                "ignore_index must be negative if the target contains probabilities: use mask instead"
            )
        kept = combine_masks(mask, positions, None, positions.shape)
    else:
        target = _signed_labels(target)
        kept = combine_masks(mask, target, ignore_index, positions.shape)
    if kept is None:
        kept = torch.ones_like(positions, dtype=torch.bool)
    input = _MaskedGradient.apply(input, kept.unsqueeze(class_dim))
    if as_probabilities:
        target = _MaskedGradient.apply(target, kept.unsqueeze(class_dim))
    else:
        target = torch.where(kept, target, _IGNORED_LABEL)
    if not as_probabilities and label_smoothing == 0:
        return _replace_empty_mean(
            F.cross_entropy(input, target, weight, reduction=reduction), kept, reduction, empty
        )
    errors = F.cross_entropy(input, target, weight, reduction="none", label_smoothing=label_smoothing)
    divisor = kept if as_probabilities or weight is None else _label_weights(weight, target, kept)
    return _replace_empty_mean(
        reduce_errors(torch.where(kept, errors, 0), divisor, reduction), kept, reduction, empty
    )


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    ignore_index: int | Sequence[int] = _IGNORED_LABEL,
    reduction: str = "mean",
    empty: float | None = None,
) -> Tensor:
    """Return the negative log likelihood of log-probabilities (N, C, ...) or (C,) as ``F.nll_loss``.

    `mask`, `ignore_index`, `reduction` and `empty` as in :func:`cross_entropy`.

    Replaces::

        loss = F.nll_loss(log_probabilities[mask], target[mask])
        loss = ops.nll_loss(log_probabilities, target, mask=mask)
    """
    require_reduction(reduction)
    target = _signed_labels(target)
    kept = combine_masks(mask, target, ignore_index, target.shape)
    if kept is None:
        kept = torch.ones_like(target, dtype=torch.bool)
    target = torch.where(kept, target, _IGNORED_LABEL)
    loss = F.nll_loss(input.contiguous(), target, weight, reduction=reduction)  # else its backward raises
    return _replace_empty_mean(loss, kept, reduction, empty)


def _signed_labels(target: Tensor) -> Tensor:
    """Return `target` in a dtype that holds negative labels."""
    return target.long() if target.dtype == torch.uint8 else target


def _label_weights(weight: Tensor, target: Tensor, kept: Tensor) -> Tensor:
    """Return the weight of each label, 0 where it does not count: the divisor of the weighted mean."""
    index = torch.where(kept, target, 0)
    return torch.where(kept, weight.index_select(0, index.flatten()).view(index.shape), 0)


def _replace_empty_mean(loss: Tensor, kept: Tensor, reduction: str, empty: float | None) -> Tensor:
    """Return `loss`, or `empty` for the mean if nothing counts."""
    if reduction != "mean" or empty is None:
        return loss
    return torch.where(kept.any(), loss, empty)
