"""Linear attention and recurrences whose states fall by a factor."""

from __future__ import annotations

from typing import Any

import torch

from kernel_cases.cases import Case, changed, first, forms
from kernel_cases.fla.names import QKV, op


def _linear(x: Any, scale: float | None = None) -> torch.Tensor:
    q, k, v = x.q, x.k, x.v
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k).tril() * scale
    return torch.einsum("bhqk,bkhd->bqhd", scores, v)


def _decayed(x: Any, rates: torch.Tensor) -> torch.Tensor:
    """Linear attention whose weights fall by a fixed rate for each head."""
    length = x.q.shape[1]
    distance = torch.arange(length)[:, None] - torch.arange(length)
    decay = torch.exp(distance.clamp(min=0) * rates[:, None, None]).tril()
    scores = torch.einsum("bqhd,bkhd->bhqk", x.q, x.k) * x.q.shape[-1] ** -0.5 * decay
    return torch.einsum("bhqk,bkhd->bqhd", scores, x.v)


def _retention_rates(count: int) -> torch.Tensor:
    return torch.log(1 - 2.0 ** (-5 - torch.arange(count, dtype=torch.float32)))


def _hgrn(x: Any) -> torch.Tensor:
    state, out = torch.zeros_like(x.x[:, 0]), []
    for t in range(x.x.shape[1]):
        state = x.g[:, t].exp() * state + x.x[:, t]
        out.append(state)
    return torch.stack(out, 1)


def _rwkv6(x: Any) -> torch.Tensor:
    state = torch.zeros(x.r.shape[0], x.r.shape[2], x.r.shape[3], x.v.shape[3])
    out = []
    for t in range(x.r.shape[1]):
        kv = torch.einsum("bhk,bhv->bhkv", x.k[:, t], x.v[:, t])
        out.append(torch.einsum("bhk,bhkv->bhv", x.r[:, t], state + x.u[..., None] * kv))
        state = state * x.w[:, t].exp()[..., None] + kv
    return torch.stack(out, 1)


def _rwkv4(x: Any) -> torch.Tensor:
    """``wkv = (Σ e^(k_i - (t-1-i) w) v_i + e^(u + k_t) v_t) / (the same without v)``."""
    decay = -torch.exp(x.w)
    top, bottom, out = torch.zeros_like(x.k[:, 0]), torch.zeros_like(x.k[:, 0]), []
    for t in range(x.k.shape[1]):
        here = torch.exp(x.u + x.k[:, t])
        out.append((top + here * x.v[:, t]) / (bottom + here))
        grown = torch.exp(x.k[:, t])
        top, bottom = top * decay.exp() + grown * x.v[:, t], bottom * decay.exp() + grown
    return torch.stack(out, 1)


def slots(x: Any) -> torch.Tensor:
    """Gated slot attention, token by token."""
    scale = x.q.shape[-1] ** -0.5
    keys = torch.zeros(x.q.shape[0], x.q.shape[2], x.q.shape[3], x.s.shape[3])
    values = torch.zeros(x.q.shape[0], x.q.shape[2], x.s.shape[3], x.v.shape[3])
    out = []
    for t in range(x.q.shape[1]):
        fall = x.g[:, t].exp()
        keys = keys * fall[..., None, :] + torch.einsum("bhk,bhm->bhkm", x.k[:, t], x.s[:, t])
        values = values * fall[..., None] + torch.einsum("bhm,bhv->bhmv", x.s[:, t], x.v[:, t])
        picked = torch.einsum("bhk,bhkm->bhm", x.q[:, t] * scale, keys).softmax(-1)
        out.append(torch.einsum("bhm,bhmv->bhv", picked, values))
    return torch.stack(out, 1)


def _abc(x: Any) -> torch.Tensor:
    total = x.s.logcumsumexp(1)
    before = torch.cat((total[:, :1], total[:, :-1]), 1)
    return slots(changed(x, s=(x.s - total).exp(), g=before - total))


CASES = [
    *forms(
        "linear attention",
        QKV,
        _linear,
        {
            "chunk": lambda x: first(op("linear_attn.chunk_linear_attn")(x.q, x.k, x.v, normalize=False)),
            "fused chunk": lambda x: first(
                op("linear_attn.fused_chunk_linear_attn")(x.q, x.k, x.v, normalize=False)
            ),
            "recurrent": lambda x: first(
                op("linear_attn.fused_recurrent_linear_attn")(x.q, x.k, x.v, normalize=False)
            ),
        },
    ),
    *forms(
        "retention",
        QKV,
        lambda x: _decayed(x, _retention_rates(2)),
        {
            "chunk": lambda x: first(op("retention.chunk_retention")(x.q, x.k, x.v)),
            "fused chunk": lambda x: first(op("retention.fused_chunk_retention")(x.q, x.k, x.v)),
            "parallel": lambda x: first(op("retention.parallel_retention")(x.q, x.k, x.v)),
            "recurrent": lambda x: first(op("retention.fused_recurrent_retention")(x.q, x.k, x.v)),
        },
    ),
    *forms(
        "lightning attention",
        QKV,
        lambda x: _decayed(x, -(8 / 2 * (1 - 1 / 4)) * torch.arange(2.0)),
        {
            "chunk": lambda x: first(
                op("lightning_attn.chunk_lightning_attn")(x.q, x.k, x.v, layer_idx=1, num_layers=4)
            ),
            "recurrent": lambda x: first(
                op("lightning_attn.fused_recurrent_lightning_attn")(x.q, x.k, x.v, layer_idx=1, num_layers=4)
            ),
        },
    ),
    *forms(
        "gated linear attention",
        f"{QKV} g=BTHK/slow",
        lambda x: op("gla.naive.naive_recurrent_gla")(x.q, x.k, x.v, x.g)[0],
        {
            "chunk": lambda x: first(op("gla.chunk_gla")(x.q, x.k, x.v, x.g)),
            "recurrent": lambda x: first(op("gla.fused_recurrent_gla")(x.q, x.k, x.v, x.g)),
        },
    ),
    *forms(
        "simple gated linear attention",
        f"{QKV} g=BTH/gate",
        lambda x: first(op("simple_gla.naive.naive_recurrent_simple_gla")(x.q, x.k, x.v, x.g)),
        {
            "chunk": lambda x: first(op("simple_gla.chunk_simple_gla")(x.q, x.k, x.v, x.g)),
            "fused chunk": lambda x: first(op("simple_gla.fused_chunk_simple_gla")(x.q, x.k, x.v, x.g)),
            "parallel": lambda x: first(op("simple_gla.parallel_simple_gla")(x.q, x.k, x.v, x.g)),
            "recurrent": lambda x: first(op("simple_gla.fused_recurrent_simple_gla")(x.q, x.k, x.v, x.g)),
        },
    ),
    *forms(
        "RWKV-6",
        "r=BTHK k=BTHK/small v=BTHV w=BTHK/slow u=HK",
        _rwkv6,
        {
            "chunk": lambda x: first(op("rwkv6.chunk_rwkv6")(x.r, x.k, x.v, x.w, x.u, scale=1.0)),
            "recurrent": lambda x: first(
                op("rwkv6.fused_recurrent_rwkv6")(x.r, x.k, x.v, x.w, x.u, scale=1.0)
            ),
        },
    ),
    Case(
        "gated linear attention of wide keys, chunk",
        lambda x: first(op("gla.chunk_gla")(x.q, x.k, x.v, x.g)),
        "q=1TN,320 k=1TN,320 v=1TNV g=1TN,320/slow",
        lambda x: op("gla.naive.naive_recurrent_gla")(x.q, x.k, x.v, x.g)[0],
    ),
    Case(
        "RWKV-6 of wide keys, chunk",
        lambda x: first(op("rwkv6.chunk_rwkv6")(x.r, x.k, x.v, x.w, x.u, scale=1.0)),
        "r=1TN,320 k=1TN,320/small v=1TNV w=1TN,320/slow u=N,320",
        _rwkv6,
    ),
    Case(
        "RWKV-4, recurrent",
        lambda x: first(op("rwkv4.fused_recurrent_rwkv4")(x.w, x.u, x.k, x.v, x.state)),
        "w=D/pos u=D k=BTD v=BTD",
        _rwkv4,
        fixed={"state": lambda: torch.cat((torch.zeros(2, 2, 1, 64), torch.full((2, 1, 1, 64), -1e30)), 1)},
    ),
    *forms(
        "gated slot attention",
        f"{QKV} s=BTHM/sig g=BTHM/slow",
        slots,
        {
            "chunk": lambda x: first(op("gsa.chunk_gsa")(x.q, x.k, x.v, x.s, x.g)),
            "recurrent": lambda x: first(op("gsa.fused_recurrent_gsa")(x.q, x.k, x.v, x.s, x.g)),
        },
    ),
    Case(
        "attention with bounded memory, chunk",
        lambda x: first(op("abc.chunk_abc")(x.q, x.k, x.v, x.s)),
        f"{QKV} s=BTHM",
        _abc,
    ),
    *forms(
        "HGRN",
        "x=BTD g=BTD/gate",
        _hgrn,
        {
            "chunk": lambda x: first(op("hgrn.chunk_hgrn")(x.x, x.g)),
            "recurrent": lambda x: first(op("hgrn.fused_recurrent_hgrn")(x.x, x.g)),
        },
    ),
]
