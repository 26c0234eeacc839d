"""Attention over packed variable-length sequences: the flash, memory-efficient and cuDNN operators.

Tensors are (batch, rows, heads, width), or with cumulative lengths (all rows, heads, width). Options: a
sliding window of columns around each row, and ALiBi slopes that lower the scores of distant columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from gapless.emulation.kernels import attention_kernels
from gapless.emulation.kernels.attention_calls import (
    AttentionCall,
    AttentionSettings,
    attention_kernel,
    generator_state,
    state_as_pair,
    state_as_scalars,
)

Tensor = torch.Tensor
_Slice = tuple[Any, Any]
_FROM_TOP_LEFT, _FROM_BOTTOM_RIGHT = 1, 2
"""Values of the memory-efficient kernel's `custom_mask_type`: the corner where the causal diagonal starts."""


def _sequences(call: AttentionCall) -> Iterator[_Slice]:
    """Yield, for each sequence, the indices of its query rows and of its key columns."""
    lengths = None if call.used is None else call.used.tolist()
    if call.ends_q is None or call.ends_k is None:
        for batch in range(call.query.shape[0]):
            last = call.key.shape[1] if lengths is None else lengths[batch]
            yield (batch, slice(None)), (batch, slice(0, last))
        return
    rows, columns = call.ends_q.tolist(), call.ends_k.tolist()
    packed = call.query.dim() == 4  # (1, all rows, heads, width)
    for number in range(len(rows) - 1):
        end = columns[number + 1] if lengths is None else columns[number] + lengths[number]
        at, of = slice(rows[number], rows[number + 1]), slice(columns[number], end)
        yield ((0, at), (0, of)) if packed else ((at,), (of,))


def _additive_bias(call: AttentionCall, number: int, rows: int, columns: int) -> Tensor | None:
    """Bias to add to a sequence's scores, (heads or 1, rows, columns): mask plus bias; None if neither."""
    mask = _mask_bias(call, rows, columns)
    if call.bias is None:
        return mask
    own = call.bias[number if call.bias.shape[0] > 1 else 0].float()
    return own if mask is None else mask + own


def _mask_bias(call: AttentionCall, rows: int, columns: int) -> Tensor | None:
    """Bias of the causal mask, window and ALiBi slopes: -inf at masked columns; None without them."""
    left, right = (-1 if side is None else side for side in (call.left, call.right))
    if not call.causal and left < 0 and right < 0 and call.slopes is None:
        return None
    shift = 0 if call.causal == _FROM_TOP_LEFT else columns - rows
    distance = torch.arange(columns) - (torch.arange(rows).unsqueeze(-1) + shift)
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if call.causal:
        hidden |= distance > 0
    if left >= 0:
        hidden |= distance < -left
    if right >= 0 and not call.causal:
        hidden |= distance > right
    bias = torch.zeros(hidden.shape).masked_fill(hidden, float("-inf")).unsqueeze(0)
    if call.slopes is not None:
        bias = bias - call.slopes.float().reshape(-1, 1, 1) * distance.abs()
    return bias


def _heads_first(tensor: Tensor) -> Tensor:
    """Reshape (rows, heads, width) to (1, heads, rows, width)."""
    return tensor.transpose(0, 1).unsqueeze(0)


def _settings(call: AttentionCall, number: int, query: Tensor, key: Tensor) -> AttentionSettings:
    """Settings for sequence `number`, whose query and key are (1, heads, rows, width)."""
    bias = _additive_bias(call, number, query.shape[2], key.shape[2])
    if bias is not None:
        bias = bias.unsqueeze(0).expand(*query.shape[:-1], -1)
    return AttentionSettings(bias, call.dropout, False, call.scale, call.state)


def _run(call: AttentionCall) -> tuple[Tensor, list[Tensor], tuple[int, int]]:
    """Return the output, each sequence's logsumexp (heads, rows), and the generator's state."""
    query, key, value = call.tensors
    state = generator_state(call.dropout)
    out = query.new_zeros(*query.shape[:-1], value.shape[-1])
    sums = []
    for number, (at, of) in enumerate(_sequences(call)):
        q, k, v = (_heads_first(part) for part in (query[at], key[of], value[of]))
        result, row_sums = attention_kernels.forward(q, k, v, _settings(call, number, q, k))
        out[at] = result[0].transpose(0, 1).to(out.dtype)
        sums.append(row_sums[0])
    return out, sums, state


def _run_backward(call: AttentionCall, sums: list[Tensor]) -> tuple[list[Tensor], Tensor | None]:
    """Return gradients of query, key, value and a trainable bias; `sums` holds each sequence's logsumexp."""
    query, key, value = call.tensors
    gradients = [torch.zeros_like(tensor) for tensor in call.tensors]
    of_bias = torch.zeros_like(call.bias) if call.bias is not None and call.bias_learns else None
    for number, (at, of) in enumerate(_sequences(call)):
        parts = (call.gradient[at], query[at], key[of], value[of], call.out[at])
        gradient, q, k, v, out = (_heads_first(part) for part in parts)
        setting = _settings(call, number, q, k)
        own = sums[number].unsqueeze(0)
        *inner, of_own = attention_kernels.backward(gradient, q, k, v, out, own, setting, of_bias is not None)
        for whole, where, part in zip(gradients, (at, of, of), inner, strict=True):
            whole[where] += part[0].transpose(0, 1).to(whole.dtype)
        if of_bias is not None and of_own is not None:
            of_bias[number if of_bias.shape[0] > 1 else 0] += of_own[0].to(of_bias.dtype)
    return gradients, of_bias


def _with_corner(call: AttentionCall, corner: int) -> AttentionCall:
    """Return `call` with its causal mask, if any, starting in `corner`."""
    return replace(call, causal=corner if call.causal else 0)


@attention_kernel("_flash_attention_forward")
def _flash(call: AttentionCall) -> tuple[Tensor, ...]:
    out, sums, state = _run(_with_corner(call, _FROM_BOTTOM_RIGHT))
    kept = torch.stack(sums) if call.ends_q is None else torch.cat(sums, -1)
    return out, kept, *state_as_pair(state), call.query.new_empty(0)


@attention_kernel("_flash_attention_forward_no_dropout_inplace")
def _flash_inplace(call: AttentionCall) -> Tensor:
    out, sums, *_ = _flash(call)
    call.out.copy_(out)
    return sums


@attention_kernel("_flash_attention_backward")
def _flash_backward(call: AttentionCall) -> tuple[Tensor, ...]:
    packed = call.ends_q is not None
    sums = [call.logsumexp[:, at[-1]] for at, _ in _sequences(call)] if packed else list(call.logsumexp)
    return tuple(_run_backward(_with_corner(call, _FROM_BOTTOM_RIGHT), sums)[0])


@attention_kernel("_efficient_attention_forward")
def _efficient(call: AttentionCall) -> tuple[Any, ...]:
    out, sums, state = _run(call)
    longest = call.longest_q
    if longest is None:
        longest = max((row_sums.shape[-1] for row_sums in sums), default=0)
    rows = (
        -(-longest // attention_kernels.ROW_MULTIPLE) * attention_kernels.ROW_MULTIPLE if call.sums_too else 0
    )
    kept = torch.full((len(sums), call.query.shape[-2], rows), float("inf"))
    for number, row_sums in enumerate(sums if rows else ()):
        kept[number, :, : row_sums.shape[-1]] = row_sums
    columns = call.key.shape[1] if call.longest_k is None else call.longest_k
    return out, kept, *state_as_scalars(state), longest, columns


@attention_kernel("_efficient_attention_backward")
def _efficient_backward(call: AttentionCall) -> tuple[Tensor | None, ...]:
    pairs = zip(call.logsumexp, _sequences(call), strict=True)
    gradients, of_bias = _run_backward(call, [sums[:, : call.query[at].shape[0]] for sums, (at, _) in pairs])
    return (*gradients, of_bias)


# -- cuDNN's operators, for both layouts -------------------------------------------------------------------


@attention_kernel("_cudnn_attention_forward")
def _cudnn(call: AttentionCall) -> tuple[Any, ...]:
    if call.ends_q is None:
        return attention_kernels.cudnn(call)
    out, sums, state = _run(replace(_with_corner(call, _FROM_TOP_LEFT), bias=None))
    kept = torch.cat(sums, -1).t().unsqueeze(-1)
    lengths = call.ends_q, call.ends_k, call.longest_q, call.longest_k
    return out, kept, *lengths, *state_as_scalars(state), None


@attention_kernel("_cudnn_attention_forward_no_dropout_inplace")
def _cudnn_in_place(call: AttentionCall) -> Tensor:
    out, kept, *_ = _cudnn(call)
    call.out.copy_(out)
    return kept


@attention_kernel("_cudnn_attention_backward")
def _cudnn_backward(call: AttentionCall) -> tuple[Tensor, ...]:
    if call.ends_q is None:
        return attention_kernels.cudnn_backward(call)
    sums = [call.logsumexp.squeeze(-1).t()[:, at[-1]] for at, _ in _sequences(call)]
    return tuple(_run_backward(replace(_with_corner(call, _FROM_TOP_LEFT), bias=None), sums)[0])
