"""CUDA's attention kernels (flash, memory-efficient, cuDNN's), with what they keep for backward.

Values are those of the CPU's kernel where it takes the arguments, else of the plain formula. A kernel that
drops out keeps the state of the generator in place of its mask, as CUDA's do: `philox` names it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from gapless.emulation.kernels import ON_HOST, WORKSPACES, philox
from gapless.emulation.kernels.calls import Call, Setting, as_pair, as_two, attends, state_now

Tensor = torch.Tensor
_aten: Any = torch.ops.aten
ROWS = 32
"""Rows of numbers that the memory-efficient kernel rounds up to (`attention.cu` of torch)."""
_BLOCK = 128
"""Rows that the backward pass of flash attention rounds up to (`flash_api.cpp` of torch)."""
_MINUS_INFINITY = float("-inf")


def forward(query: Tensor, key: Tensor, value: Tensor, how: Setting) -> tuple[Tensor, Tensor]:
    """Result (batch, heads, rows, width) and the logarithm of each row's sum of exponentials."""
    key, value = _for_each_head(query, key), _for_each_head(query, value)
    if _plain(query, value, how):
        out: tuple[Tensor, Tensor] = _aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, how.causal, attn_mask=how.bias, scale=how.scale
        )
        return out[0], out[1].float()
    scores = _scores(query, key, how)
    shares = _shares(scores, how).to(value.dtype)
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
    how: Setting,
    of_bias_too: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of query, key, value and, if wanted, of the bias."""
    heads = key.shape[1]
    wide_key, wide_value = _for_each_head(query, key), _for_each_head(query, value)
    of_bias: Tensor | None = None
    if _plain(query, value, how) and not of_bias_too:
        of_query, of_key, of_value = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, query, wide_key, wide_value, out, logsumexp, 0.0, how.causal,
            attn_mask=how.bias, scale=how.scale,
        )  # fmt: skip
    else:
        shares = _shares(_scores(query, wide_key, how), how)
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
        _laid_like(query, of_query),
        _laid_like(key, _of_heads(of_key, heads)),
        _laid_like(value, _of_heads(of_value, heads)),
        of_bias,
    )


def _laid_like(like: Tensor, made: Tensor) -> Tensor:
    """`made` with the strides and the type of `like`, as a kernel writes into what is allocated so."""
    made = made.to(like.dtype)
    if made.shape != like.shape or made.stride() == like.stride():
        return made
    return torch.empty_like(like).copy_(made)


def _in_rows(made: Tensor) -> Tensor:
    """`made` (batch, heads, rows, width), laid out as (batch, rows, heads, width)."""
    return made.transpose(1, 2).contiguous().transpose(1, 2)


def _plain(query: Tensor, value: Tensor, how: Setting) -> bool:
    """Whether the CPU has one kernel for it."""
    return (
        how.dropout == 0
        and query.shape[-1] == value.shape[-1]
        and query.numel() > 0
        and value.numel() > 0
        and query.is_floating_point()
    )


def _for_each_head(query: Tensor, other: Tensor) -> Tensor:
    """Keys or values of few heads, one for each of the query's."""
    if other.shape[1] == query.shape[1]:
        return other
    return other.repeat_interleave(query.shape[1] // other.shape[1], 1)


def _of_heads(gradient: Tensor, heads: int) -> Tensor:
    if gradient.shape[1] == heads:
        return gradient
    return gradient.unflatten(1, (heads, -1)).sum(2)


def _scale(query: Tensor, how: Setting) -> float:
    return 1 / math.sqrt(query.shape[-1]) if how.scale is None else how.scale


def _scores(query: Tensor, key: Tensor, how: Setting) -> Tensor:
    wide = query.dtype if query.dtype is torch.float64 else torch.float32
    scale = _scale(query, how)
    root = math.sqrt(abs(scale))
    query, key = query.to(wide) * math.copysign(root, scale), key.to(wide) * root
    scores = query @ key.transpose(-2, -1)
    if how.causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(seen.logical_not(), _MINUS_INFINITY)
    return scores if how.bias is None else scores + how.bias.to(wide)


def _shares(scores: Tensor, how: Setting) -> Tensor:
    shares = scores.softmax(-1)
    if how.bias is not None or how.causal:  # a row that sees nothing
        shares = shares.masked_fill(scores.isneginf().all(-1, keepdim=True), 0)
    return shares


# -- scaled_dot_product_attention's kernels ------------------------------------------------------------


@attends("_scaled_dot_product_flash_attention")
def _flash(call: Call) -> tuple[Any, ...]:
    state = state_now(call.dropout)
    out, logsumexp = forward(*call.tensors, call.setting)
    rows, columns = call.query.shape[2], call.key.shape[2]
    out = _laid_like(call.query, out)
    return out, logsumexp, None, None, rows, columns, *as_pair(state), call.query.new_empty(0)


@attends("_scaled_dot_product_flash_attention.quantized")
def _flash_quantized(call: Call) -> tuple[Any, ...]:
    """8-bit numbers with one scale for each batch and head; the result is bfloat16."""
    scales = call.q_descale, call.k_descale, call.v_descale
    query, key, value = (
        one.float() if by is None else one.float() * by.reshape(*by.shape, *[1] * (4 - by.dim()))
        for one, by in zip(call.tensors, scales, strict=True)
    )
    out, *rest = _flash(replace(call, query=query, key=key, value=value))
    return out.to(torch.bfloat16), *rest


@attends("_scaled_dot_product_flash_attention_backward")
def _flash_backward(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    return backward(call.gradient, *call.tensors, call.out, call.logsumexp, call.setting)[:3]


def _sums(gradient: Tensor, query: Tensor, *_: Any, **__: Any) -> list[tuple[int, ...]]:
    """Sums for each row, and the query's gradient while it is added up."""
    batch, heads, length, width = query.shape
    rows = -(-length // _BLOCK) * _BLOCK
    return [(batch, heads, rows), (batch, rows, heads, -(-width // ROWS) * ROWS)]


WORKSPACES["_scaled_dot_product_flash_attention_backward"] = _sums
# Outside of a graph's capture (`attention.cu`).
ON_HOST["_scaled_dot_product_efficient_attention"] = ON_HOST["_efficient_attention_forward"] = (2, 3)


@attends("_scaled_dot_product_efficient_attention")
def _efficient(call: Call) -> tuple[Tensor, ...]:
    state = state_now(call.dropout)
    out, sums = forward(*call.tensors, call.setting)
    out = _in_rows(out)
    rows = -(-call.query.shape[2] // ROWS) * ROWS if call.sums_too else 0
    kept = torch.full((*sums.shape[:2], rows), float("inf"))
    if rows:
        kept[..., : sums.shape[2]] = sums
    return out, kept, *as_two(state)


@attends("_scaled_dot_product_efficient_attention_backward")
def _efficient_backward(call: Call) -> tuple[Tensor | None, ...]:
    sums = call.logsumexp[..., : call.query.shape[2]]
    *made, of_bias = backward(call.gradient, *call.tensors, call.out, sums, call.setting, call.wanted[3])
    results = (*(_in_rows(one) for one in made if one is not None), of_bias)
    return tuple(one if wanted else None for one, wanted in zip(results, call.wanted, strict=True))


@attends("_scaled_dot_product_cudnn_attention")
def cudnn(call: Call) -> tuple[Any, ...]:
    """cuDNN's, for one layout: (batch, heads, rows, width)."""
    state = state_now(call.dropout)
    out, sums = forward(*call.tensors, call.setting)
    out, rows, columns = _laid_like(call.query, out), call.query.shape[2], call.key.shape[2]
    return out, sums.unsqueeze(-1), None, None, rows, columns, *as_two(state), None


@attends("_scaled_dot_product_cudnn_attention_backward")
def cudnn_backward(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value of `cudnn`."""
    return backward(call.gradient, *call.tensors, call.out, call.logsumexp.squeeze(-1), call.setting)[:3]


@attends("_triton_scaled_dot_attention")
def _triton(call: Call) -> Tensor:
    return forward(*call.tensors, call.setting)[0]
