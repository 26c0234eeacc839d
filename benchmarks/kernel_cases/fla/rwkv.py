"""RWKV-7's smaller operations."""

from __future__ import annotations

from typing import Any

import torch

from kernel_cases.cases import Case, first
from kernel_cases.fla.names import op


def _mixed(x: Any) -> torch.Tensor:
    return op("rwkv7.channel_mixing.channel_mixing_rwkv7_torch")(x.x, x.p, x.c, x.k, x.v)[0]


def _added(x: Any) -> list[torch.Tensor]:
    return [x.h + x.d * each for each in (x.r, x.w, x.k, x.v, x.a, x.g)]


def _corrected(x: Any) -> torch.Tensor:
    added = ((x.r * x.k * x.u).sum(-1, keepdim=True) * x.v).flatten(2)
    return (x.o + added) * x.g


def _recurrent(x: Any) -> torch.Tensor:
    """``S = S (diag(e^w) - kk (kk a)^T) + k v^T``."""
    state, out = torch.zeros(2, 2, 32, 32), []
    for t in range(x.r.shape[1]):
        removed = torch.einsum("bhk,bhkv->bhv", -x.kk[:, t], state)
        state = (
            state * x.w[:, t].exp()[..., None]
            + torch.einsum("bhk,bhv->bhkv", x.kk[:, t] * x.a[:, t], removed)
            + torch.einsum("bhk,bhv->bhkv", x.k[:, t], x.v[:, t])
        )
        out.append(torch.einsum("bhk,bhkv->bhv", x.r[:, t], state))
    return torch.stack(out, 1)


def _updated(x: Any) -> torch.Tensor:
    return x.k * (1 + (x.a - 1) * x.u)


CASES = [
    Case(
        "RWKV-7, channel mixing",
        lambda x: op("rwkv7.channel_mixing.channel_mixing_rwkv7")(x.x, x.p, x.c, x.k, x.v, False)[0],
        "x=BTD p=BD c=D k=D,128/small v=128,D/small",
        _mixed,
    ),
    Case(
        "RWKV-7, six sums",
        lambda x: op("rwkv7.fused_addcmul.fused_addcmul_rwkv7")(x.h, x.d, x.r, x.w, x.k, x.v, x.a, x.g),
        "h=BTD d=BTD r=1,1,D w=1,1,D k=1,1,D v=1,1,D a=1,1,D g=1,1,D",
        _added,
    ),
    Case(
        "RWKV-7, keys",
        lambda x: op("rwkv7.fused_k_update.fused_k_rwkv7")(x.k, x.a, x.u),
        "k=BTD a=BTD/sig u=1,1,D",
        _updated,
    ),
    Case(
        "RWKV-7, keys of a long sequence",
        lambda x: op("rwkv7.fused_k_update.fused_k_rwkv7")(x.k, x.a, x.u),
        "k=1,600,D a=1,600,D/sig u=1,1,D",
        _updated,
    ),
    Case(
        "RWKV-7, correction",
        lambda x: op("rwkv7.gate_output_correction.gate_output_correction")(x.o, x.r, x.k, x.u, x.v, x.g),
        "o=BTD r=BTHK k=BTHK u=HK v=BTHK g=BTD",
        _corrected,
    ),
    Case(
        "RWKV-7, recurrent, multiplied",
        lambda x: first(op("rwkv7.fused_recurrent.fused_mul_recurrent_rwkv7")(x.r, x.w, x.k, x.v, x.kk, x.a)),
        "r=BTHK w=BTHK/slow k=BTHK/small v=BTHV kk=BTHK/unit a=BTHK/sig",
        _recurrent,
        backward=False,
    ),
]
