"""CUDA's attention kernels (flash, memory-efficient, cuDNN), with what they save for backward.

Values come from the CPU's kernel if it supports the arguments, else from the formula. As on CUDA, a kernel
with dropout saves the generator's state (see `philox`) instead of its mask.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from gapless.emulation.kernels import HOST_RESULTS, WORKSPACES, philox
from gapless.emulation.kernels.attention_calls import (
    AttentionCall,
    AttentionSettings,
    attention_kernel,
    generator_state,
    state_as_pair,
    state_as_scalars,
)

Tensor = torch.Tensor
_aten: Any = torch.ops.aten
ROW_MULTIPLE = 32
"""The memory-efficient kernel rounds row counts up to multiples of this (`attention.cu` of torch)."""
_FLASH_ROW_MULTIPLE = 128
"""Flash attention's backward rounds row counts up to multiples of this (`flash_api.cpp` of torch)."""
_MINUS_INFINITY = float("-inf")


def forward(query: Tensor, key: Tensor, value: Tensor, how: AttentionSettings) -> tuple[Tensor, Tensor]:
    """Return the output (batch, heads, rows, width) and each row's logsumexp."""
    key, value = _repeat_heads(query, key), _repeat_heads(query, value)
    if _fits_cpu_kernel(query, value, how):
        out: tuple[Tensor, Tensor] = _aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, how.causal, attn_mask=how.bias, scale=how.scale
        )
        return out[0], out[1].float()
    scores = _scores(query, key, how)
    shares = _attention_weights(scores, how).to(value.dtype)
    if how.dropout > 0:
        kept = torch.empty_like(shares).bernoulli_(1 - how.dropout)
        shares = shares * kept.div_(1 - how.dropout)
    return _in_rows(shares @ value), scores.logsumexp(-1).float()


def backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    how: AttentionSettings,
    of_bias_too: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients of query, key, value and, if `of_bias_too`, of the bias."""
    heads = key.shape[1]
    wide_key, wide_value = _repeat_heads(query, key), _repeat_heads(query, value)
    of_bias: Tensor | None = None
    if _fits_cpu_kernel(query, value, how) and not of_bias_too:
        of_query, of_key, of_value = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, query, wide_key, wide_value, out, logsumexp, 0.0, how.causal,
            attn_mask=how.bias, scale=how.scale,
        )  # fmt: skip
    else:
        shares = _attention_weights(_scores(query, wide_key, how), how)
        kept = torch.ones((), dtype=shares.dtype)
        if how.dropout > 0:
            drawn = torch.empty_like(shares, dtype=value.dtype)
            drawn.bernoulli_(1 - how.dropout, generator=philox.generator(*how.state))
            kept = (drawn / (1 - how.dropout)).to(shares.dtype)
        up = gradient.to(shares.dtype)
        of_value = (shares * kept).transpose(-2, -1) @ up
        inner = (up @ wide_value.to(shares.dtype).transpose(-2, -1)) * kept
        of_scores = shares * (inner - (inner * shares).sum(-1, keepdim=True))
        scale = _scale(query, how)
        of_query = of_scores @ wide_key.to(shares.dtype) * scale
        of_key = of_scores.transpose(-2, -1) @ query.to(shares.dtype) * scale
        if of_bias_too and how.bias is not None:
            of_bias = of_scores.sum_to_size(how.bias.shape).to(how.bias.dtype)
    return (
        _match_layout(query, of_query),
        _match_layout(key, _sum_heads(of_key, heads)),
        _match_layout(value, _sum_heads(of_value, heads)),
        of_bias,
    )


def _match_layout(like: Tensor, tensor: Tensor) -> Tensor:
    """Return `tensor` with the dtype and strides of `like`, as CUDA's kernels allocate their results."""
    tensor = tensor.to(like.dtype)
    if tensor.shape != like.shape or tensor.stride() == like.stride():
        return tensor
    return torch.empty_like(like).copy_(tensor)


def _in_rows(tensor: Tensor) -> Tensor:
    """Return `tensor` (batch, heads, rows, width) with the memory layout (batch, rows, heads, width)."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def _fits_cpu_kernel(query: Tensor, value: Tensor, how: AttentionSettings) -> bool:
    """Whether the CPU's fused attention kernel supports these arguments."""
    return (
        how.dropout == 0
        and query.shape[-1] == value.shape[-1]
        and query.numel() > 0
        and value.numel() > 0
        and query.is_floating_point()
    )


def _repeat_heads(query: Tensor, other: Tensor) -> Tensor:
    """Repeat the heads of keys or values to match the query's (grouped-query attention)."""
    if other.shape[1] == query.shape[1]:
        return other
    return other.repeat_interleave(query.shape[1] // other.shape[1], 1)


def _sum_heads(gradient: Tensor, heads: int) -> Tensor:
    """Undo `_repeat_heads` for a gradient: sum over the copies of each head."""
    if gradient.shape[1] == heads:
        return gradient
    return gradient.unflatten(1, (heads, -1)).sum(2)


def _scale(query: Tensor, how: AttentionSettings) -> float:
    return 1 / math.sqrt(query.shape[-1]) if how.scale is None else how.scale


def _scores(query: Tensor, key: Tensor, how: AttentionSettings) -> Tensor:
    wide = query.dtype if query.dtype is torch.float64 else torch.float32
    scale = _scale(query, how)
    root = math.sqrt(abs(scale))
    query, key = query.to(wide) * math.copysign(root, scale), key.to(wide) * root
    scores = query @ key.transpose(-2, -1)
    if how.causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(visible.logical_not(), _MINUS_INFINITY)
    return scores if how.bias is None else scores + how.bias.to(wide)


def _attention_weights(scores: Tensor, how: AttentionSettings) -> Tensor:
    shares = scores.softmax(-1)
    if how.bias is not None or how.causal:  # rows with every column masked give NaN
        shares = shares.masked_fill(scores.isneginf().all(-1, keepdim=True), 0)
    return shares


# -- scaled_dot_product_attention's kernels ------------------------------------------------------------


@attention_kernel("_scaled_dot_product_flash_attention")
def _flash(call: AttentionCall) -> tuple[Any, ...]:
    state = generator_state(call.dropout)
    out, logsumexp = forward(*call.tensors, call.setting)
    rows, columns = call.query.shape[2], call.key.shape[2]
    out = _match_layout(call.query, out)
    return out, logsumexp, None, None, rows, columns, *state_as_pair(state), call.query.new_empty(0)


@attention_kernel("_scaled_dot_product_flash_attention.quantized")
def _quantized_flash_attention(call: AttentionCall) -> tuple[Any, ...]:
    """Take 8-bit tensors with one scale per batch and head; return bfloat16."""
    scales = call.q_descale, call.k_descale, call.v_descale
    query, key, value = (
        tensor.float()
        if scale is None
        else tensor.float() * scale.reshape(*scale.shape, *[1] * (4 - scale.dim()))
        for tensor, scale in zip(call.tensors, scales, strict=True)
    )
    out, *rest = _flash(replace(call, query=query, key=key, value=value))
    return out.to(torch.bfloat16), *rest


@attention_kernel("_scaled_dot_product_flash_attention_backward")
def _flash_backward(call: AttentionCall) -> tuple[Tensor, Tensor, Tensor]:
    return backward(call.gradient, *call.tensors, call.out, call.logsumexp, call.setting)[:3]


def _backward_workspace(gradient: Tensor, query: Tensor, *_: Any, **__: Any) -> list[tuple[int, ...]]:
    """Shapes of the temporary memory: the rows' sums, and the accumulated gradient of the query."""
    batch, heads, length, width = query.shape
    rows = -(-length // _FLASH_ROW_MULTIPLE) * _FLASH_ROW_MULTIPLE
    return [(batch, heads, rows), (batch, rows, heads, -(-width // ROW_MULTIPLE) * ROW_MULTIPLE)]


WORKSPACES["_scaled_dot_product_flash_attention_backward"] = _backward_workspace
# Seed and offset are on the host, except in a graph's capture (`attention.cu`).
HOST_RESULTS["_scaled_dot_product_efficient_attention"] = (2, 3)
HOST_RESULTS["_efficient_attention_forward"] = (2, 3)


@attention_kernel("_scaled_dot_product_efficient_attention")
def _efficient(call: AttentionCall) -> tuple[Tensor, ...]:
    state = generator_state(call.dropout)
    out, sums = forward(*call.tensors, call.setting)
    out = _in_rows(out)
    rows = -(-call.query.shape[2] // ROW_MULTIPLE) * ROW_MULTIPLE if call.sums_too else 0
    kept = torch.full((*sums.shape[:2], rows), float("inf"))
    if rows:
        kept[..., : sums.shape[2]] = sums
    return out, kept, *state_as_scalars(state)


@attention_kernel("_scaled_dot_product_efficient_attention_backward")
def _efficient_backward(call: AttentionCall) -> tuple[Tensor | None, ...]:
    sums = call.logsumexp[..., : call.query.shape[2]]
    *gradients, of_bias = backward(call.gradient, *call.tensors, call.out, sums, call.setting, call.wanted[3])
    results = (*(_in_rows(gradient) for gradient in gradients if gradient is not None), of_bias)
    return tuple(gradient if wanted else None for gradient, wanted in zip(results, call.wanted, strict=True))


@attention_kernel("_scaled_dot_product_cudnn_attention")
def cudnn(call: AttentionCall) -> tuple[Any, ...]:
    """Run cuDNN's attention on tensors (batch, heads, rows, width)."""
    state = generator_state(call.dropout)
    out, sums = forward(*call.tensors, call.setting)
    out, rows, columns = _match_layout(call.query, out), call.query.shape[2], call.key.shape[2]
    return out, sums.unsqueeze(-1), None, None, rows, columns, *state_as_scalars(state), None


@attention_kernel("_scaled_dot_product_cudnn_attention_backward")
def cudnn_backward(call: AttentionCall) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value for `cudnn`."""
    return backward(call.gradient, *call.tensors, call.out, call.logsumexp.squeeze(-1), call.setting)[:3]


@attention_kernel("_triton_scaled_dot_attention")
def _triton(call: AttentionCall) -> Tensor:
    return forward(*call.tensors, call.setting)[0]
