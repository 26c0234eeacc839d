"""``flash_attn.bert_padding``: batches without their padding.

These are operators of torch in the package, too: what they launch and wait for is counted one by one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gapless.emulation.standins.packages.flash_attn._package import PACKAGE

_MODULE = "flash_attn.bert_padding"


class IndexFirstAxis(torch.autograd.Function):
    """Rows of the first axis, by a gather; backward scatters."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, indices: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(indices)
        ctx.rows = source.shape[0]
        wide = source.flatten(1)
        taken = torch.gather(wide, 0, indices[:, None].expand(-1, wide.shape[1]))
        return taken.reshape(-1, *source.shape[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        (indices,) = ctx.saved_tensors
        wide = gradient.flatten(1)
        whole = torch.zeros(ctx.rows, wide.shape[1], device=wide.device, dtype=wide.dtype)
        whole.scatter_(0, indices[:, None].expand(-1, wide.shape[1]), wide)
        return whole.reshape(ctx.rows, *gradient.shape[1:]), None


class IndexPutFirstAxis(torch.autograd.Function):
    """Rows put where `indices` say, into zeros."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, indices: Tensor, rows: int) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(indices)
        whole = torch.zeros(rows, *values.shape[1:], device=values.device, dtype=values.dtype)
        whole[indices] = values
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        (indices,) = ctx.saved_tensors
        return gradient[indices], None, None


class IndexFirstAxisResidual(torch.autograd.Function):
    """Rows of the first axis, and the source for a residual connection."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, indices: Tensor) -> Any:  # type: ignore[override]
        ctx.save_for_backward(indices)
        return source[indices], source.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, residual: Tensor) -> Any:  # type: ignore[override]
        (indices,) = ctx.saved_tensors
        at = indices.reshape(-1, *[1] * (gradient.dim() - 1)).expand_as(gradient)
        return residual.scatter_add_(0, at, gradient), None


index_first_axis = IndexFirstAxis.apply
index_put_first_axis = IndexPutFirstAxis.apply
index_first_axis_residual = IndexFirstAxisResidual.apply
PACKAGE.holds(
    _MODULE,
    IndexFirstAxis=IndexFirstAxis,
    IndexPutFirstAxis=IndexPutFirstAxis,
    IndexFirstAxisResidual=IndexFirstAxisResidual,
    index_first_axis=index_first_axis,
    index_put_first_axis=index_put_first_axis,
    index_first_axis_residual=index_first_axis_residual,
)


@PACKAGE.provides(_MODULE)
def unpad_input(hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None) -> Any:
    """Return the unmasked tokens, their indices, sequence starts, the longest length, and the lengths.

    Waits twice, as the package does: for the number of tokens and for the longest length.
    """
    everything = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = everything.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(everything.flatten(), as_tuple=False).flatten()
    longest = lengths.max().item()
    starts = functional.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, starts, longest, used


@PACKAGE.provides(_MODULE)
def unpad_input_for_concatenated_sequences(hidden_states: Tensor, attention_mask_in_length: Tensor) -> Any:
    """Like `unpad_input`, for rows that hold several sequences: the mask's row has their lengths.

    Waits three times, as the package does.
    """
    totals = attention_mask_in_length.sum(dim=-1)
    size = attention_mask_in_length.size(-1)
    at = torch.arange(size, device=totals.device, dtype=totals.dtype).expand(len(totals), size)
    used = torch.nonzero(attention_mask_in_length.flatten(), as_tuple=False).flatten()
    lengths = attention_mask_in_length.flatten()[used]
    indices = torch.nonzero((at < totals.unsqueeze(1)).flatten(), as_tuple=False).flatten()
    longest = lengths.max().item()
    starts = functional.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, starts, longest


@PACKAGE.provides(_MODULE)
def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """``[batch, seqlen, …]`` with the tokens where `indices` say, and zeros elsewhere."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))
