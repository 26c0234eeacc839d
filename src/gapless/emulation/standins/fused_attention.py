"""Attention as fused kernels compute it, in plain torch: windows, soft caps, slopes, grouped heads."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

NO_WINDOW = (-1, -1)
"""The window of flash-attn that limits neither side."""


class AttentionRules(NamedTuple):
    """How scores become weights.

    `scale` multiplies scores (None: one over the root of the width). The last query is aligned with the last
    key: query i sees key j if ``-left <= j - (i + keys - queries) <= right``, for ``window = (left, right)``;
    negative limits are none. `cap` bounds scores softly (0: not), `slopes` (per head, or per sequence and
    head) lower them with distance, and `dropout` is the share of weights set to zero.
    """

    scale: float | None = None
    causal: bool = False
    window: tuple[int, int] = NO_WINDOW
    cap: float = 0.0
    slopes: Tensor | None = None
    dropout: float = 0.0


def attend(
    query: Tensor, key: Tensor, value: Tensor, rules: AttentionRules, bias: Tensor | None = None
) -> Tensor:
    """Return the attention output for ``[batch, length, heads, width]``; keys may have fewer heads.

    Rows that see no key are zero. Computed in float32, returned in the dtype of `query`.
    """
    mask = visibility_mask(query.shape[1], key.shape[1], rules)
    plain = not rules.cap and rules.slopes is None and bias is None and not rules.dropout
    if not plain or (mask is not None and not bool(mask.any(-1).all())) or not key.shape[1]:
        return _attend_naively(query, key, value, rules, bias)[0]
    q, k, v = _heads_first(query, key, value)
    scale = rules.scale if rules.scale is not None else query.shape[-1] ** -0.5
    square = rules.causal and rules.window == NO_WINDOW and query.shape[1] == key.shape[1]
    out = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=None if square else mask, is_causal=square, scale=scale
    )
    return out.transpose(1, 2).contiguous().to(query.dtype)


def attend_with_sums(
    query: Tensor, key: Tensor, value: Tensor, rules: AttentionRules, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Like `attend`, and return the log of each row's softmax sum, ``[batch, heads, length]`` in float32."""
    return _attend_naively(query, key, value, rules, bias)


def visibility_mask(queries: int, keys: int, rules: AttentionRules) -> Tensor | None:
    """Return the mask of keys that each query sees, ``[queries, keys]``; None if it sees all."""
    left, right = rules.window
    right = 0 if rules.causal else right
    if left < 0 and right < 0:
        return None
    distance = _distance(queries, keys)
    mask = torch.ones(queries, keys, dtype=torch.bool)
    if left >= 0:
        mask &= distance >= -left
    if right >= 0:
        mask &= distance <= right
    return mask


def _distance(queries: int, keys: int) -> Tensor:
    """Return the position of each key relative to each query, ``[queries, keys]``; negative is earlier."""
    return torch.arange(keys)[None] - (torch.arange(queries)[:, None] + keys - queries)


def _heads_first(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return all three as ``[batch, heads, length, width]`` in float32, with the queries' number of heads."""
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    q, k, v = (tensor.transpose(1, 2).to(wide) for tensor in (query, key, value))
    times = q.shape[1] // k.shape[1]
    if times > 1:
        k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
    return q, k, v


def _attend_naively(
    query: Tensor, key: Tensor, value: Tensor, rules: AttentionRules, bias: Tensor | None
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
    mask = visibility_mask(q.shape[2], k.shape[2], rules)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    empty = (scores == -math.inf).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
    if rules.dropout:
        weights = functional.dropout(weights, rules.dropout)
    sums = torch.logsumexp(scores.detach(), -1).masked_fill(empty.squeeze(-1), math.inf)
    return (weights @ v).transpose(1, 2).contiguous().to(query.dtype), sums.float()


def rotate(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    interleaved: bool = False,
    offsets: int | Tensor = 0,
    inverse: bool = False,
) -> Tensor:
    """Return `x` ``[batch, length, heads, width]`` with the first ``2 * cos.shape[1]`` of its width rotated.

    Row p of `cos` and `sin` is for position p; `offsets` is the first position of each sequence. `inverse`
    rotates the other way.
    """
    length, half = x.shape[1], cos.shape[-1]
    starts = offsets.long() if isinstance(offsets, Tensor) else torch.tensor([offsets])
    at = starts[:, None] + torch.arange(length)
    inside = (at < cos.shape[0])[..., None, None]
    at = at.clamp(max=cos.shape[0] - 1)
    c = torch.where(inside, cos[at][:, :, None].float(), 1.0)
    s = torch.where(inside, sin[at][:, :, None].float(), 0.0)
    s = -s if inverse else s
    part = x[..., : 2 * half].float()
    if interleaved:
        a, b = part[..., ::2], part[..., 1::2]
        turned = torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)
    else:
        a, b = part[..., :half], part[..., half:]
        turned = torch.cat((a * c - b * s, a * s + b * c), -1)
    return torch.cat((turned.to(x.dtype), x[..., 2 * half :]), -1)
