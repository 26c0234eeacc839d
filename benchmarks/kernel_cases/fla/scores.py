"""Attention by scores: softmax and what stands in its place."""

from __future__ import annotations

from typing import Any

import torch

from kernel_cases.cases import Case, attention, first, forms, heads
from kernel_cases.fla.names import QKV, op


def _based(x: Any) -> torch.Tensor:
    """Attention by the Taylor series of exp, without a norm where it is asked for, else with."""
    scores = torch.einsum("bqhd,bkhd->bhqk", x.q * x.q.shape[-1] ** -0.5, x.k)
    weights = (1 + scores + scores * scores / 2).tril()
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-6)
    return torch.einsum("bhqk,bkhd->bqhd", weights, x.v)


def _rebased(x: Any) -> torch.Tensor:
    scores = torch.einsum("bqhd,bkhd->bhqk", x.q * x.q.shape[-1] ** -0.5, x.k).square().tril()
    weights = scores / (scores.sum(-1, keepdim=True) + 1e-5)
    return torch.einsum("bhqk,bkhd->bqhd", weights, x.v)


def _differences(g: torch.Tensor) -> torch.Tensor:
    total = heads(g.cumsum(1))
    return total[..., :, None] - total[..., None, :]


def blocks(length: int = 80) -> torch.Tensor:
    """For each token its own block of 16 and the first one."""
    own = torch.arange(length) // 16
    return torch.stack((torch.zeros_like(own), own), -1)[None, :, None]


def _sparse(x: Any) -> torch.Tensor:
    """Attention over the first and the own block of 16, gated."""
    length = x.q.shape[1]
    block = torch.arange(length) // 16
    hidden = (block[:, None] != block) & (block[None, :] != 0)
    k, v = x.k.expand(-1, -1, 16, -1), x.v.expand(-1, -1, 16, -1)
    return attention(x.q, k, v, torch.zeros(length, length).masked_fill(hidden, -1e30)) * x.g[..., None]


CASES = [
    *forms(
        "Based",
        "q=BTHM k=BTHM v=BTHV",
        _based,
        {
            "parallel": lambda x: first(op("based.parallel_based")(x.q, x.k, x.v)),
            "fused chunk": lambda x: first(op("based.fused_chunk_based")(x.q, x.k, x.v)),
        },
    ),
    Case(
        "Rebased, parallel",
        lambda x: first(op("rebased.parallel_rebased")(x.q, x.k, x.v)),
        "q=BTHM k=BTHM v=BTHV",
        _rebased,
    ),
    Case(
        "softmax attention, parallel",
        lambda x: first(op("attn.parallel_attn")(x.q, x.k, x.v)),
        QKV,
        lambda x: attention(x.q, x.k, x.v),
    ),
    Case(
        "forgetting attention, parallel",
        lambda x: first(op("forgetting_attn.parallel_forgetting_attn")(x.q, x.k, x.v, x.g)),
        f"{QKV} g=BTH/gate",
        lambda x: attention(x.q, x.k, x.v, _differences(x.g)),
    ),
    Case(
        "PaTH attention, parallel",
        lambda x: first(op("path_attn.parallel_path_attn")(x.q, x.k, x.v, x.w, x.beta, x.g)),
        "q=BTHK k=BTHK v=BTHV w=BTHK/unit beta=BTH/sig g=BTH/gate",
        lambda x: first(
            op("path_attn.naive.naive_path_attn")(x.q, x.k, x.v, x.w, x.beta, x.g, x.q.shape[-1] ** -0.5)
        ),
    ),
    Case(
        "Parallax attention",
        lambda x: first(op("parallax.parallel_parallax")(x.q, x.r, x.k, x.v)),
        f"{QKV} r=BTHK/small",
        lambda x: first(op("parallax.naive.naive_parallax")(x.q, x.r, x.k, x.v)),
        dtype=torch.float16,
    ),
    Case(
        "wall attention",
        lambda x: first(op("wall_attn.parallel_wall_attn")(x.q, x.k, x.v, x.g)),
        f"{QKV} g=BTHK/slow",
        lambda x: attention(x.q * x.g.cumsum(1).exp(), x.k * (-x.g.cumsum(1)).exp(), x.v),
    ),
    Case(
        "native sparse attention",
        lambda x: first(
            op("nsa.parallel_nsa")(
                x.q, x.k, x.v, None, x.g, None, block_indices=x.blocks, block_size=16, block_counts=2
            )
        ),
        "q=1,80,16,32 k=1,80,1,32 v=1,80,1,32 g=1,80,16/sig",
        _sparse,
        fixed={"blocks": blocks},
    ),
    Case(
        "log-linear attention, chunk",
        lambda x: first(op("log_linear_attn.chunk_log_linear_attn")(x.q, x.k, x.v, x.g, x.levels)),
        "q=BTN,64/small k=BTN,64/small v=BT,2,64 g=BTH/gate levels=BTH,8/sig",
        lambda x: op("log_linear_attn.naive.naive_log_linear_attn")(
            x.q.expand(-1, -1, 2, -1), x.k.expand(-1, -1, 2, -1), x.v, x.g, x.levels
        ),
    ),
    Case(
        "attention over residuals",
        lambda x: first(op("attnres.fused_attnres")(x.q, x.r.unbind(), x.w, x.o)),
        "q=D r=XBTD w=D o=D",
        lambda x: first(op("attnres.naive.naive_attnres")(x.q, x.r, x.w, x.o)),
    ),
]
