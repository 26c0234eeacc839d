"""CUDA's attention kernels (flash, memory-efficient, cuDNN's), with what they keep for backward.

Values are those of the CPU's kernel where it takes the arguments, else of the plain formula. A kernel that
drops out keeps the state of the generator in place of its mask, as CUDA's do: `philox` names it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from gapless.emulate.cuda_api import philox
from gapless.emulate.kernels import ON_HOST, WORKSPACES, kernel

Tensor = torch.Tensor
_aten: Any = torch.ops.aten
_ROWS = 32
"""Rows of numbers that the memory-efficient kernel rounds up to (`attention.cu` of torch)."""
_BLOCK = 128
"""Rows that the backward pass of flash attention rounds up to (`flash_api.cpp` of torch)."""
_MINUS_INFINITY = float("-inf")


class Setting(NamedTuple):
    """How rows meet columns: an additive `bias`, in backward the `state` of the generator that dropped out.

    `causal` says that a row sees the columns up to its own number.
    """

    bias: Tensor | None = None
    dropout: float = 0.0
    causal: bool = False
    scale: float | None = None
    state: tuple[int, int] = (0, 0)


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
    out_ = (shares @ value).transpose(1, 2).contiguous().transpose(1, 2)
    return out_, scores.logsumexp(-1).float()


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


# -- the generator's state ---------------------------------------------------------------------------


def _state(dropout: float) -> tuple[int, int]:
    return philox.token(torch.default_generator) if dropout > 0 else (0, 0)


def _signed(seed: int) -> int:
    return seed - (1 << 64) if seed >> 63 else seed


def _pair(seed: Tensor, offset: Tensor) -> tuple[int, int]:
    numbers = [*seed.view(torch.int64).reshape(-1).tolist(), *offset.view(torch.int64).reshape(-1).tolist()]
    return numbers[0] % (1 << 64), numbers[1]


def _as_pair(state: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Both as flash attention gives them: two numbers, and one that is not used."""
    both = torch.tensor([_signed(state[0]), state[1]], dtype=torch.int64).view(torch.uint64)
    return both, torch.zeros((), dtype=torch.int64).view(torch.uint64)


def _as_two(state: tuple[int, int]) -> tuple[Tensor, Tensor]:
    return torch.tensor(_signed(state[0]), dtype=torch.int64), torch.tensor(state[1], dtype=torch.int64)


# -- scaled_dot_product_attention's kernels ------------------------------------------------------------


@kernel("_scaled_dot_product_flash_attention")
def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    state = _state(dropout_p)
    out, logsumexp = forward(query, key, value, Setting(None, dropout_p, is_causal, scale))
    rows, columns = query.shape[2], key.shape[2]
    out = _laid_like(query, out)
    return out, logsumexp, None, None, rows, columns, *_as_pair(state), query.new_empty(0)


@kernel("_scaled_dot_product_flash_attention.quantized")
def _flash_quantized(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    q_descale: Tensor | None,
    k_descale: Tensor | None,
    v_descale: Tensor | None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """8-bit numbers with one scale for each batch and head; the result is bfloat16."""
    wide = [
        one.float() if by is None else one.float() * by.reshape(*by.shape, *[1] * (4 - by.dim()))
        for one, by in ((query, q_descale), (key, k_descale), (value, v_descale))
    ]
    out, *rest = _flash(*wide, dropout_p, is_causal, return_debug_mask, scale=scale)
    return out.to(torch.bfloat16), *rest


@kernel("_scaled_dot_product_flash_attention_backward")
def _flash_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    state = _pair(philox_seed, philox_offset) if dropout_p > 0 else (0, 0)
    how = Setting(None, dropout_p, is_causal, scale, state)
    return backward(grad_out, query, key, value, out, logsumexp, how)[:3]


def _sums(gradient: Tensor, query: Tensor, *_: Any, **__: Any) -> list[tuple[int, ...]]:
    """Sums for each row, and the query's gradient while it is added up."""
    batch, heads, length, width = query.shape
    rows = -(-length // _BLOCK) * _BLOCK
    return [(batch, heads, rows), (batch, rows, heads, -(-width // _ROWS) * _ROWS)]


WORKSPACES["_scaled_dot_product_flash_attention_backward"] = _sums
# Outside of a graph's capture (`attention.cu`).
ON_HOST["_scaled_dot_product_efficient_attention"] = ON_HOST["_efficient_attention_forward"] = (2, 3)


@kernel("_scaled_dot_product_efficient_attention")
def _efficient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    state = _state(dropout_p)
    out, sums = forward(query, key, value, Setting(attn_bias, dropout_p, is_causal, scale))
    rows = -(-query.shape[2] // _ROWS) * _ROWS if compute_log_sumexp else 0
    kept = torch.full((*sums.shape[:2], rows), float("inf"))
    if rows:
        kept[..., : sums.shape[2]] = sums
    return out, kept, *_as_two(state)


@kernel("_scaled_dot_product_efficient_attention_backward")
def _efficient_backward(
    grad_out_: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    dropout_p: float,
    grad_input_mask: list[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor | None, ...]:
    state = _pair(philox_seed, philox_offset) if dropout_p > 0 else (0, 0)
    how = Setting(attn_bias, dropout_p, is_causal, scale, state)
    sums = logsumexp[..., : query.shape[2]]
    made = backward(grad_out_, query, key, value, out, sums, how, grad_input_mask[3])
    return tuple(one if wanted else None for one, wanted in zip(made, grad_input_mask, strict=True))


@kernel("_scaled_dot_product_cudnn_attention")
def _cudnn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    state = _state(dropout_p)
    out, sums = forward(query, key, value, Setting(attn_bias, dropout_p, is_causal, scale))
    out = _laid_like(query, out)
    return out, sums.unsqueeze(-1), None, None, query.shape[2], key.shape[2], *_as_two(state), None


@kernel("_scaled_dot_product_cudnn_attention_backward")
def _cudnn_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    attn_bias: Tensor | None,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    state = _pair(philox_seed, philox_offset) if dropout_p > 0 else (0, 0)
    how = Setting(attn_bias, dropout_p, is_causal, scale, state)
    return backward(grad_out, query, key, value, out, logsumexp.squeeze(-1), how)[:3]


@kernel("_triton_scaled_dot_attention")
def _triton(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0) -> Tensor:
    return forward(q, k, v, Setting(dropout=dropout_p))[0]
