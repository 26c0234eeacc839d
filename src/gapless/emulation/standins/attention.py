"""Attention as fused kernels compute it, by plain torch: windows, soft caps, slopes, grouped heads."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

WHOLE = (-1, -1)


class Rules(NamedTuple):
    """How scores become weights.

    `scale` multiplies scores (None: one over the root of the width). The last query stands at the last key:
    query i sees key j where ``-left <= j - (i + keys - queries) <= right``, for ``window = (left, right)``;
    negative numbers do not limit. `cap` bounds scores softly (0: not), `slopes` (of each head, or of each in
    each sequence) lower them with distance, and `dropout` is the share of weights that becomes zero.
    """

    scale: float | None = None
    causal: bool = False
    window: tuple[int, int] = WHOLE
    cap: float = 0.0
    slopes: Tensor | None = None
    dropout: float = 0.0


def attend(query: Tensor, key: Tensor, value: Tensor, rules: Rules, bias: Tensor | None = None) -> Tensor:
    """What a fused kernel gives for ``[batch, length, heads, width]``; keys may have fewer heads.

    Rows that see no key are zero. Computed in float32, given in the dtype of `query`.
    """
    seen = visible(query.shape[1], key.shape[1], rules)
    plain = not rules.cap and rules.slopes is None and bias is None and not rules.dropout
    if not plain or (seen is not None and not bool(seen.any(-1).all())) or not key.shape[1]:
        return _weighted(query, key, value, rules, bias)[0]
    q, k, v = _heads_first(query, key, value)
    scale = rules.scale if rules.scale is not None else query.shape[-1] ** -0.5
    square = rules.causal and rules.window == WHOLE and query.shape[1] == key.shape[1]
    out = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=None if square else seen, is_causal=square, scale=scale
    )
    return out.transpose(1, 2).contiguous().to(query.dtype)


def attend_with_sums(
    query: Tensor, key: Tensor, value: Tensor, rules: Rules, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Like `attend`, with the logarithm of each row's sum, ``[batch, heads, length]`` in float32."""
    return _weighted(query, key, value, rules, bias)


def visible(queries: int, keys: int, rules: Rules) -> Tensor | None:
    """Which keys each query sees, ``[queries, keys]``; None where it sees all."""
    left, right = rules.window
    right = 0 if rules.causal else right
    if left < 0 and right < 0:
        return None
    distance = _distance(queries, keys)
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if left >= 0:
        seen &= distance >= -left
    if right >= 0:
        seen &= distance <= right
    return seen


def _distance(queries: int, keys: int) -> Tensor:
    """How far behind (negative) or ahead of each query each key is."""
    return torch.arange(keys)[None] - (torch.arange(queries)[:, None] + keys - queries)


def _heads_first(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All three as ``[batch, heads, length, width]`` in float32, with as many heads as queries have."""
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    q, k, v = (one.transpose(1, 2).to(wide) for one in (query, key, value))
    times = q.shape[1] // k.shape[1]
    if times > 1:
        k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
    return q, k, v


def _weighted(
    query: Tensor, key: Tensor, value: Tensor, rules: Rules, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    q, k, v = _heads_first(query, key, value)
    scale = rules.scale if rules.scale is not None else query.shape[-1] ** -0.5
    scores = q @ k.transpose(-1, -2) * scale
    if rules.cap > 0:
        scores = torch.tanh(scores / rules.cap) * rules.cap
    if rules.slopes is not None:
        slopes = rules.slopes.float().reshape(-1, rules.slopes.shape[-1], 1, 1)
        scores = scores - slopes * _distance(q.shape[2], k.shape[2]).abs()
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    seen = visible(q.shape[2], k.shape[2], rules)
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf)
    empty = (scores == -math.inf).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
    if rules.dropout:
        weights = functional.dropout(weights, rules.dropout)
    sums = torch.logsumexp(scores.detach(), -1).masked_fill(empty.squeeze(-1), math.inf)
    return (weights @ v).transpose(1, 2).contiguous().to(query.dtype), sums.float()


def rotated(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    interleaved: bool = False,
    offsets: int | Tensor = 0,
    back: bool = False,
) -> Tensor:
    """`x` ``[batch, length, heads, width]`` with the first ``2 * cos.shape[1]`` of its width rotated.

    Row p of `cos` and `sin` is for position p; `offsets` is the position of the first of each sequence.
    `back` turns the other way.
    """
    length, half = x.shape[1], cos.shape[-1]
    starts = offsets.long() if isinstance(offsets, Tensor) else torch.tensor([offsets])
    at = starts[:, None] + torch.arange(length)
    inside = (at < cos.shape[0])[..., None, None]
    at = at.clamp(max=cos.shape[0] - 1)
    c = torch.where(inside, cos[at][:, :, None].float(), 1.0)
    s = torch.where(inside, sin[at][:, :, None].float(), 0.0)
    s = -s if back else s
    part = x[..., : 2 * half].float()
    if interleaved:
        a, b = part[..., ::2], part[..., 1::2]
        turned = torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)
    else:
        a, b = part[..., :half], part[..., half:]
        turned = torch.cat((a * c - b * s, a * s + b * c), -1)
    return torch.cat((turned.to(x.dtype), x[..., 2 * half :]), -1)
