"""Recurrences that correct what their states hold: the delta rule and its kin."""

from __future__ import annotations

from typing import Any

import torch

from kernel_cases.cases import Case, changed, first, forms
from kernel_cases.fla.names import UNIT, op


def _delta(x: Any) -> torch.Tensor:
    """The delta rule, one token after the other."""
    q, k, v, beta = (tensor.float() for tensor in (x.q, x.k, x.v, x.beta))
    state = torch.zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3])
    out = []
    for t in range(q.shape[1]):
        error = v[:, t] - torch.einsum("bhk,bhkv->bhv", k[:, t], state)
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], error * beta[:, t, :, None])
        out.append(torch.einsum("bhk,bhkv->bhv", q[:, t] * q.shape[-1] ** -0.5, state))
    return torch.stack(out, 1)


def _comba(x: Any) -> torch.Tensor:
    """As its kernels compute it: what is corrected is the state before it falls."""
    state = torch.zeros(x.q.shape[0], x.q.shape[2], x.q.shape[3], x.v.shape[3])
    out = []
    for t in range(x.q.shape[1]):
        error = (x.v[:, t] - torch.einsum("bhk,bhkv->bhv", x.p[:, t], state)) * x.beta[:, t, :, None]
        state = state * x.g[:, t].exp()[..., None, None] + torch.einsum("bhk,bhv->bhkv", x.k[:, t], error)
        out.append(torch.einsum("bhk,bhkv->bhv", x.q[:, t] * x.q.shape[-1] ** -0.5, state))
    return torch.stack(out, 1)


def _dplr(x: Any) -> torch.Tensor:
    """``S = diag(exp(w)) S + b (aᵀ S) + k vᵀ``, one token after the other."""
    state = torch.zeros(x.q.shape[0], x.q.shape[2], x.q.shape[3], x.v.shape[3])
    out = []
    for t in range(x.q.shape[1]):
        read = torch.einsum("bhk,bhkv->bhv", x.a[:, t], state)
        state = state * x.g[:, t].exp()[..., None] + torch.einsum("bhk,bhv->bhkv", x.b[:, t], read)
        state = state + torch.einsum("bhk,bhv->bhkv", x.k[:, t], x.v[:, t])
        out.append(torch.einsum("bhk,bhkv->bhv", x.q[:, t] * x.scale, state))
    return torch.stack(out, 1)


def _oja(x: Any) -> torch.Tensor:
    """``S = diag_v(e^g) S + β (k - S v) vᵀ``: the delta rule with keys and values in each other's place."""
    scale = x.q.shape[-1] ** -0.5
    state = torch.zeros(x.q.shape[0], x.q.shape[2], x.q.shape[3], x.v.shape[3])
    out = []
    for t in range(x.q.shape[1]):
        state = state * x.g[:, t].exp()[..., None, :]
        error = x.k[:, t] - torch.einsum("bhkv,bhv->bhk", state, x.v[:, t])
        state = state + torch.einsum("bhk,bhv->bhkv", error * x.beta[:, t, :, None], x.v[:, t])
        out.append(torch.einsum("bhk,bhkv->bhv", x.q[:, t] * scale, state))
    return torch.stack(out, 1)


def _ttt(x: Any) -> torch.Tensor:
    return first(op("ttt.naive.chunk_ttt_linear_ref")(x.q * 1, x.k, x.v, x.w, x.b, x.eta, mini_batch_size=16))


CASES = [
    Case(
        "delta rule, chunk",
        lambda x: first(op("delta_rule.chunk_delta_rule")(x.q, x.k, x.v, x.beta)),
        f"{UNIT} beta=BTH/sig",
        _delta,
        dtype=torch.float16,
    ),
    Case(
        "delta rule, recurrent",
        lambda x: first(op("delta_rule.fused_recurrent_delta_rule")(x.q, x.k, x.v, x.beta)),
        f"{UNIT} beta=BTH/sig",
        _delta,
    ),
    *forms(
        "gated delta rule",
        f"{UNIT} g=BTH/gate beta=BTH/sig",
        lambda x: first(
            op("gated_delta_rule.naive.naive_recurrent_gated_delta_rule")(x.q, x.k, x.v, x.beta, x.g)
        ),
        {
            "chunk": lambda x: first(
                op("gated_delta_rule.chunk_gated_delta_rule")(x.q, x.k, x.v, x.g, x.beta)
            ),
            "recurrent": lambda x: first(
                op("gated_delta_rule.fused_recurrent_gated_delta_rule")(x.q, x.k, x.v, x.g, beta=x.beta)
            ),
        },
        forward_only=["recurrent"],
    ),
    Case(
        "gated delta product, chunk",
        lambda x: first(
            op("gated_delta_product.chunk_gated_delta_product")(x.q, x.k, x.v, x.g, x.beta, num_householder=1)
        ),
        f"{UNIT} g=BTH/gate beta=BTH/sig",
        lambda x: first(
            op("gated_delta_rule.naive.naive_recurrent_gated_delta_rule")(x.q, x.k, x.v, x.beta, x.g)
        ),
        dtype=torch.float16,
    ),
    *forms(
        "comba",
        f"{UNIT} p=BTHK/unit g=BTH/gate beta=BTH/sig",
        _comba,
        {
            "chunk": lambda x: first(op("comba.chunk_comba")(x.q, x.k, x.v, x.p, x.g, x.beta)),
            "recurrent": lambda x: first(op("comba.fused_recurrent_comba")(x.q, x.k, x.p, x.v, x.g, x.beta)),
        },
        forward_only=["recurrent"],
    ),
    *forms(
        "Kimi delta attention",
        f"{UNIT} g=BTHK/slow beta=BTH/sig",
        lambda x: first(op("kda.naive.naive_recurrent_kda")(x.q, x.k, x.v, x.g, x.beta)),
        {
            "chunk": lambda x: first(op("kda.chunk_kda")(x.q, x.k, x.v, x.g, x.beta)),
            "recurrent": lambda x: first(op("kda.fused_recurrent_kda")(x.q, x.k, x.v, x.g, x.beta)),
        },
        forward_only=["recurrent"],
    ),
    *forms(
        "gdn2",
        f"{UNIT} g=BTHK/slow b=BTHK/sig w=BTHV/sig",
        lambda x: first(op("gdn2.naive.naive_recurrent_gdn2")(x.q, x.k, x.v, x.g, x.b, x.w)),
        {
            "chunk": lambda x: first(op("gdn2.chunk_gdn2")(x.q, x.k, x.v, x.g, x.b, x.w)),
            "recurrent": lambda x: first(op("gdn2.fused_recurrent_gdn2")(x.q, x.k, x.v, x.g, x.b, x.w)),
        },
        forward_only=["recurrent"],
    ),
    *forms(
        "diagonal plus low rank",
        "q=BTHK k=BTHK/small v=BTHV a=BTHK/unit b=BTHK/small g=BTHK/slow",
        _dplr,
        {
            "chunk": lambda x: first(
                op("generalized_delta_rule.chunk_dplr_delta_rule")(
                    x.q, x.k, x.v, x.a, x.b, x.g, scale=x.scale
                )
            ),
            "recurrent": lambda x: first(
                op("generalized_delta_rule.fused_recurrent_dplr_delta_rule")(
                    x.q, x.k, x.v, x.a, x.b, x.g, scale=x.scale
                )
            ),
        },
        forward_only=["recurrent"],
        fixed={"scale": lambda: 0.2},
    ),
    *forms(
        "identity plus low rank",
        "q=BTHK k=BTHK/small v=BTHV a=BTHK/unit b=BTHK/small",
        lambda x: _dplr(changed(x, g=torch.zeros_like(x.q))),
        {
            "chunk": lambda x: first(
                op("generalized_delta_rule.chunk_iplr_delta_rule")(x.q, x.k, x.v, x.a, x.b, scale=x.scale)
            ),
            "recurrent": lambda x: first(
                op("generalized_delta_rule.fused_recurrent_iplr_delta_rule")(
                    x.q, x.k, x.v, x.a, x.b, scale=x.scale
                )
            ),
        },
        forward_only=["chunk"],
        fixed={"scale": lambda: 0.2},
    ),
    *forms(
        "RWKV-7",
        "q=BTHK k=BTHK/small v=BTHV a=BTHK/unit b=BTHK/small g=BTHK/slow",
        _dplr,
        {
            "chunk": lambda x: first(op("rwkv7.chunk_rwkv7")(x.q, x.g, x.k, x.v, x.a, x.b, scale=x.scale)),
            "recurrent": lambda x: first(
                op("rwkv7.fused_recurrent_rwkv7")(x.q, x.g, x.k, x.v, x.a, x.b, scale=x.scale)
            ),
        },
        forward_only=["recurrent"],
        fixed={"scale": lambda: 0.2},
    ),
    # The library rounds q and k to fp16: `lamb` is so large that the system does not multiply that.
    Case(
        "MesaNet, chunk",
        lambda x: first(op("mesa_net.chunk_mesa_net")(x.q, x.k, x.v, x.g, x.beta, x.lamb + 1)),
        f"{UNIT} g=BTH/gate beta=BTH/sig lamb=HK/pos",
        lambda x: first(op("mesa_net.naive.naive_mesa_net_exact")(x.q, x.k, x.v, x.g, x.lamb + 1, x.beta)),
    ),
    *forms(
        "TTT",
        "q=BTHK/unit k=BTHK/unit v=BTHV w=HV b=HV eta=BTHN/small",
        _ttt,
        {
            "chunk": lambda x: first(
                op("ttt.chunk_ttt_linear")(x.q, x.k, x.v, x.w, x.b, x.eta, chunk_size=16)
            ),
            "fused chunk": lambda x: first(
                op("ttt.fused_chunk_ttt_linear")(x.q, x.k, x.v, x.w, x.b, x.eta, chunk_size=16)
            ),
        },
    ),
    *forms(
        "gated Oja rule",
        "q=BTHK/unit k=BTHK/unit v=BTHV/unit g=BTHV/slow beta=BTH/sig",
        _oja,
        {
            "chunk": lambda x: first(op("gated_oja_rule.chunk_gated_oja_rule")(x.q, x.k, x.v, x.g, x.beta)),
            "recurrent": lambda x: first(
                op("gated_oja_rule.fused_recurrent_gated_oja_rule")(x.q, x.k, x.v, x.g, x.beta)
            ),
        },
        forward_only=["recurrent"],
    ),
]
