"""flash-linear-attention (``fla``): its operations beside the naive forms that it ships, or torch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from kernel_cases.cases import Case, Modules, attention, first, heads

PACKAGE, DISTRIBUTION = "fla", "fla-core"
op = Modules("fla.ops")
module = Modules("fla.modules")


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


def _delta(x: Any) -> torch.Tensor:
    """The delta rule, one token after the other."""
    q, k, v, beta = (one.float() for one in (x.q, x.k, x.v, x.beta))
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
        seen = torch.einsum("bhk,bhkv->bhv", x.a[:, t], state)
        state = state * x.g[:, t].exp()[..., None] + torch.einsum("bhk,bhv->bhkv", x.b[:, t], seen)
        state = state + torch.einsum("bhk,bhv->bhkv", x.k[:, t], x.v[:, t])
        out.append(torch.einsum("bhk,bhkv->bhv", x.q[:, t] * x.scale, state))
    return torch.stack(out, 1)


def _hgrn(x: Any) -> torch.Tensor:
    state, out = torch.zeros_like(x.x[:, 0]), []
    for t in range(x.x.shape[1]):
        state = x.g[:, t].exp() * state + x.x[:, t]
        out.append(state)
    return torch.stack(out, 1)


def _local_cumsum(x: torch.Tensor, size: int = 32) -> torch.Tensor:
    return torch.cat([part.cumsum(1) for part in x.split(size, 1)], 1)


QKV = "q=BTHK k=BTHK v=BTHV"
UNIT = "q=BTHK/unit k=BTHK/unit v=BTHV"

CASES = [
    Case(
        "linear attention, chunk",
        lambda x: first(op("linear_attn.chunk_linear_attn")(x.q, x.k, x.v, normalize=False)),
        QKV,
        _linear,
    ),
    Case(
        "linear attention, fused chunk",
        lambda x: first(op("linear_attn.fused_chunk_linear_attn")(x.q, x.k, x.v, normalize=False)),
        QKV,
        _linear,
    ),
    Case(
        "linear attention, recurrent",
        lambda x: first(op("linear_attn.fused_recurrent_linear_attn")(x.q, x.k, x.v, normalize=False)),
        QKV,
        _linear,
    ),
    Case(
        "retention, chunk",
        lambda x: first(op("retention.chunk_retention")(x.q, x.k, x.v)),
        QKV,
        lambda x: _decayed(x, _retention_rates(2)),
    ),
    Case(
        "retention, fused chunk",
        lambda x: first(op("retention.fused_chunk_retention")(x.q, x.k, x.v)),
        QKV,
        lambda x: _decayed(x, _retention_rates(2)),
    ),
    Case(
        "retention, parallel",
        lambda x: first(op("retention.parallel_retention")(x.q, x.k, x.v)),
        QKV,
        lambda x: _decayed(x, _retention_rates(2)),
    ),
    Case(
        "retention, recurrent",
        lambda x: first(op("retention.fused_recurrent_retention")(x.q, x.k, x.v)),
        QKV,
        lambda x: _decayed(x, _retention_rates(2)),
    ),
    Case(
        "lightning attention, chunk",
        lambda x: first(op("lightning_attn.chunk_lightning_attn")(x.q, x.k, x.v, layer_idx=1, num_layers=4)),
        QKV,
        lambda x: _decayed(x, -(8 / 2 * (1 - 1 / 4)) * torch.arange(2.0)),
    ),
    Case(
        "lightning attention, recurrent",
        lambda x: first(
            op("lightning_attn.fused_recurrent_lightning_attn")(x.q, x.k, x.v, layer_idx=1, num_layers=4)
        ),
        QKV,
        lambda x: _decayed(x, -(8 / 2 * (1 - 1 / 4)) * torch.arange(2.0)),
    ),
    Case(
        "gated linear attention, chunk",
        lambda x: first(op("gla.chunk_gla")(x.q, x.k, x.v, x.g)),
        f"{QKV} g=BTHK/slow",
        lambda x: op("gla.naive.naive_recurrent_gla")(x.q, x.k, x.v, x.g)[0],
    ),
    Case(
        "gated linear attention, recurrent",
        lambda x: first(op("gla.fused_recurrent_gla")(x.q, x.k, x.v, x.g)),
        f"{QKV} g=BTHK/slow",
        lambda x: op("gla.naive.naive_recurrent_gla")(x.q, x.k, x.v, x.g)[0],
    ),
    Case(
        "simple gated linear attention, chunk",
        lambda x: first(op("simple_gla.chunk_simple_gla")(x.q, x.k, x.v, x.g)),
        f"{QKV} g=BTH/gate",
        lambda x: first(op("simple_gla.naive.naive_recurrent_simple_gla")(x.q, x.k, x.v, x.g)),
    ),
    Case(
        "simple gated linear attention, fused chunk",
        lambda x: first(op("simple_gla.fused_chunk_simple_gla")(x.q, x.k, x.v, x.g)),
        f"{QKV} g=BTH/gate",
        lambda x: first(op("simple_gla.naive.naive_recurrent_simple_gla")(x.q, x.k, x.v, x.g)),
    ),
    Case(
        "simple gated linear attention, parallel",
        lambda x: first(op("simple_gla.parallel_simple_gla")(x.q, x.k, x.v, x.g)),
        f"{QKV} g=BTH/gate",
        lambda x: first(op("simple_gla.naive.naive_recurrent_simple_gla")(x.q, x.k, x.v, x.g)),
    ),
    Case(
        "simple gated linear attention, recurrent",
        lambda x: first(op("simple_gla.fused_recurrent_simple_gla")(x.q, x.k, x.v, x.g)),
        f"{QKV} g=BTH/gate",
        lambda x: first(op("simple_gla.naive.naive_recurrent_simple_gla")(x.q, x.k, x.v, x.g)),
    ),
    Case(
        "delta rule, chunk",
        lambda x: first(op("delta_rule.chunk_delta_rule")(x.q, x.k, x.v, x.beta)),
        f"{UNIT} beta=BTH/sig",
        _delta,
        dtype=torch.bfloat16,
        tolerance=2e-2,
    ),
    Case(
        "delta rule, recurrent",
        lambda x: first(op("delta_rule.fused_recurrent_delta_rule")(x.q, x.k, x.v, x.beta)),
        f"{UNIT} beta=BTH/sig",
        _delta,
    ),
    Case(
        "gated delta rule, chunk",
        lambda x: first(op("gated_delta_rule.chunk_gated_delta_rule")(x.q, x.k, x.v, x.g, x.beta)),
        f"{UNIT} g=BTH/gate beta=BTH/sig",
        lambda x: first(
            op("gated_delta_rule.naive.naive_recurrent_gated_delta_rule")(x.q, x.k, x.v, x.beta, x.g)
        ),
    ),
    Case(
        "gated delta rule, recurrent",
        lambda x: first(
            op("gated_delta_rule.fused_recurrent_gated_delta_rule")(x.q, x.k, x.v, x.g, beta=x.beta)
        ),
        f"{UNIT} g=BTH/gate beta=BTH/sig",
        lambda x: first(
            op("gated_delta_rule.naive.naive_recurrent_gated_delta_rule")(x.q, x.k, x.v, x.beta, x.g)
        ),
        backward=False,
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
        dtype=torch.bfloat16,
        tolerance=2e-2,
    ),
    Case(
        "comba, chunk",
        lambda x: first(op("comba.chunk_comba")(x.q, x.k, x.v, x.p, x.g, x.beta)),
        f"{UNIT} p=BTHK/unit g=BTH/gate beta=BTH/sig",
        _comba,
    ),
    Case(
        "comba, recurrent",
        lambda x: first(op("comba.fused_recurrent_comba")(x.q, x.k, x.p, x.v, x.g, x.beta)),
        f"{UNIT} p=BTHK/unit g=BTH/gate beta=BTH/sig",
        _comba,
        backward=False,
    ),
    Case(
        "Kimi delta attention, chunk",
        lambda x: first(op("kda.chunk_kda")(x.q, x.k, x.v, x.g, x.beta)),
        f"{UNIT} g=BTHK/slow beta=BTH/sig",
        lambda x: first(op("kda.naive.naive_recurrent_kda")(x.q, x.k, x.v, x.g, x.beta)),
    ),
    Case(
        "Kimi delta attention, recurrent",
        lambda x: first(op("kda.fused_recurrent_kda")(x.q, x.k, x.v, x.g, x.beta)),
        f"{UNIT} g=BTHK/slow beta=BTH/sig",
        lambda x: first(op("kda.naive.naive_recurrent_kda")(x.q, x.k, x.v, x.g, x.beta)),
        backward=False,
    ),
    Case(
        "gdn2, chunk",
        lambda x: first(op("gdn2.chunk_gdn2")(x.q, x.k, x.v, x.g, x.b, x.w)),
        f"{UNIT} g=BTHK/slow b=BTHK/sig w=BTHV/sig",
        lambda x: first(op("gdn2.naive.naive_recurrent_gdn2")(x.q, x.k, x.v, x.g, x.b, x.w)),
    ),
    Case(
        "gdn2, recurrent",
        lambda x: first(op("gdn2.fused_recurrent_gdn2")(x.q, x.k, x.v, x.g, x.b, x.w)),
        f"{UNIT} g=BTHK/slow b=BTHK/sig w=BTHV/sig",
        lambda x: first(op("gdn2.naive.naive_recurrent_gdn2")(x.q, x.k, x.v, x.g, x.b, x.w)),
        backward=False,
    ),
    Case(
        "diagonal plus low rank, chunk",
        lambda x: first(
            op("generalized_delta_rule.chunk_dplr_delta_rule")(x.q, x.k, x.v, x.a, x.b, x.g, scale=x.scale)
        ),
        "q=BTHK k=BTHK/small v=BTHV a=BTHK/unit b=BTHK/small g=BTHK/slow",
        _dplr,
        fixed={"scale": lambda: 0.2},
    ),
    Case(
        "diagonal plus low rank, recurrent",
        lambda x: first(
            op("generalized_delta_rule.fused_recurrent_dplr_delta_rule")(
                x.q, x.k, x.v, x.a, x.b, x.g, scale=x.scale
            )
        ),
        "q=BTHK k=BTHK/small v=BTHV a=BTHK/unit b=BTHK/small g=BTHK/slow",
        _dplr,
        fixed={"scale": lambda: 0.2},
        backward=False,
    ),
    Case(
        "identity plus low rank, chunk",
        lambda x: first(
            op("generalized_delta_rule.chunk_iplr_delta_rule")(x.q, x.k, x.v, x.a, x.b, scale=x.scale)
        ),
        "q=BTHK k=BTHK/small v=BTHV a=BTHK/unit b=BTHK/small",
        lambda x: _dplr(_with(x, g=torch.zeros_like(x.q))),
        fixed={"scale": lambda: 0.2},
        backward=False,
    ),
    Case(
        "identity plus low rank, recurrent",
        lambda x: first(
            op("generalized_delta_rule.fused_recurrent_iplr_delta_rule")(
                x.q, x.k, x.v, x.a, x.b, scale=x.scale
            )
        ),
        "q=BTHK k=BTHK/small v=BTHV a=BTHK/unit b=BTHK/small",
        lambda x: _dplr(_with(x, g=torch.zeros_like(x.q))),
        fixed={"scale": lambda: 0.2},
    ),
    Case(
        "RWKV-7, chunk",
        lambda x: first(op("rwkv7.chunk_rwkv7")(x.q, x.g, x.k, x.v, x.a, x.b, scale=x.scale)),
        "q=BTHK k=BTHK/small v=BTHV a=BTHK/unit b=BTHK/small g=BTHK/slow",
        _dplr,
        fixed={"scale": lambda: 0.2},
    ),
    Case(
        "RWKV-7, recurrent",
        lambda x: first(op("rwkv7.fused_recurrent_rwkv7")(x.q, x.g, x.k, x.v, x.a, x.b, scale=x.scale)),
        "q=BTHK k=BTHK/small v=BTHV a=BTHK/unit b=BTHK/small g=BTHK/slow",
        _dplr,
        fixed={"scale": lambda: 0.2},
        backward=False,
    ),
    Case(
        "RWKV-6, chunk",
        lambda x: first(op("rwkv6.chunk_rwkv6")(x.r, x.k, x.v, x.w, x.u, scale=1.0)),
        "r=BTHK k=BTHK/small v=BTHV w=BTHK/slow u=HK",
        lambda x: _rwkv6(x),
    ),
    Case(
        "RWKV-6, recurrent",
        lambda x: first(op("rwkv6.fused_recurrent_rwkv6")(x.r, x.k, x.v, x.w, x.u, scale=1.0)),
        "r=BTHK k=BTHK/small v=BTHV w=BTHK/slow u=HK",
        lambda x: _rwkv6(x),
    ),
    Case(
        "RWKV-4, recurrent",
        lambda x: first(op("rwkv4.fused_recurrent_rwkv4")(x.w, x.u, x.k, x.v, x.state)),
        "w=D/pos u=D k=BTD v=BTD",
        fixed={"state": lambda: torch.cat((torch.zeros(2, 2, 1, 64), torch.full((2, 1, 1, 64), -1e30)), 1)},
        plain=lambda x: _rwkv4(x),
    ),
    Case(
        "gated slot attention, chunk",
        lambda x: first(op("gsa.chunk_gsa")(x.q, x.k, x.v, x.s, x.g)),
        f"{QKV} s=BTHM/sig g=BTHM/slow",
        lambda x: _gsa(x),
    ),
    Case(
        "gated slot attention, recurrent",
        lambda x: first(op("gsa.fused_recurrent_gsa")(x.q, x.k, x.v, x.s, x.g)),
        f"{QKV} s=BTHM/sig g=BTHM/slow",
        lambda x: _gsa(x),
    ),
    Case(
        "attention with bounded memory, chunk",
        lambda x: first(op("abc.chunk_abc")(x.q, x.k, x.v, x.s)),
        f"{QKV} s=BTHM",
        lambda x: _abc(x),
    ),
    Case("HGRN, chunk", lambda x: first(op("hgrn.chunk_hgrn")(x.x, x.g)), "x=BTD g=BTD/gate", _hgrn),
    Case(
        "HGRN, recurrent",
        lambda x: first(op("hgrn.fused_recurrent_hgrn")(x.x, x.g)),
        "x=BTD g=BTD/gate",
        _hgrn,
    ),
    Case(
        "Based, parallel",
        lambda x: first(op("based.parallel_based")(x.q, x.k, x.v)),
        "q=BTHM k=BTHM v=BTHV",
        lambda x: _based(x),
    ),
    Case(
        "Based, fused chunk",
        lambda x: first(op("based.fused_chunk_based")(x.q, x.k, x.v)),
        "q=BTHM k=BTHM v=BTHV",
        lambda x: _based(x),
    ),
    Case(
        "Rebased, parallel",
        lambda x: first(op("rebased.parallel_rebased")(x.q, x.k, x.v)),
        "q=BTHM k=BTHM v=BTHV",
        lambda x: _rebased(x),
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
        dtype=torch.bfloat16,
        tolerance=2e-2,
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
        lambda x: _sparse(x),
        fixed={"blocks": lambda: _blocks()},
    ),
    Case(
        "log-linear attention, chunk",
        lambda x: first(op("log_linear_attn.chunk_log_linear_attn")(x.q, x.k, x.v, x.g, x.levels)),
        "q=BTN,64/small k=BTN,64/small v=BT,2,64 g=BTH/gate levels=BTH,7/sig",
        lambda x: op("log_linear_attn.naive.naive_log_linear_attn")(
            x.q.expand(-1, -1, 2, -1), x.k.expand(-1, -1, 2, -1), x.v, x.g, x.levels
        ),
    ),
    Case(
        "MesaNet, chunk",
        lambda x: first(op("mesa_net.chunk_mesa_net")(x.q, x.k, x.v, x.g, x.beta, x.lamb)),
        f"{UNIT} g=BTH/gate beta=BTH/sig lamb=HK/pos",
        lambda x: first(op("mesa_net.naive.naive_mesa_net_exact")(x.q, x.k, x.v, x.g, x.lamb, x.beta)),
        tolerance=5e-3,
    ),
    Case(
        "TTT, chunk",
        lambda x: first(op("ttt.chunk_ttt_linear")(x.q, x.k, x.v, x.w, x.b, x.eta, chunk_size=16)),
        "q=BTHK/unit k=BTHK/unit v=BTHV w=HV b=HV eta=BTHN/small",
        lambda x: _ttt(x),
    ),
    Case(
        "TTT, fused chunk",
        lambda x: first(op("ttt.fused_chunk_ttt_linear")(x.q, x.k, x.v, x.w, x.b, x.eta, chunk_size=16)),
        "q=BTHK/unit k=BTHK/unit v=BTHV w=HV b=HV eta=BTHN/small",
        lambda x: _ttt(x),
    ),
    Case(
        "gated Oja rule, chunk",
        lambda x: first(op("gated_oja_rule.chunk_gated_oja_rule")(x.q, x.k, x.v, x.g, x.beta)),
        "q=BTHK/unit k=BTHK/unit v=BTHV/unit g=BTHV/slow beta=BTH/sig",
        lambda x: _oja(x),
    ),
    Case(
        "gated Oja rule, recurrent",
        lambda x: first(op("gated_oja_rule.fused_recurrent_gated_oja_rule")(x.q, x.k, x.v, x.g, x.beta)),
        "q=BTHK/unit k=BTHK/unit v=BTHV/unit g=BTHV/slow beta=BTH/sig",
        lambda x: _oja(x),
        backward=False,
    ),
    Case(
        "attention over residuals",
        lambda x: first(op("attnres.fused_attnres")(x.q, x.r, x.w, x.o)),
        "q=D r=XBTD w=D o=D",
        lambda x: first(op("attnres.naive.naive_attnres")(x.q, x.r, x.w, x.o)),
    ),
    Case(
        "local sums",
        lambda x: op("utils.chunk_local_cumsum")(x.g, 32),
        "g=BTH",
        lambda x: _local_cumsum(x.g),
        backward=False,
    ),
    Case(
        "local sums of vectors",
        lambda x: op("utils.chunk_local_cumsum")(x.g, 32),
        "g=BTHK",
        lambda x: _local_cumsum(x.g),
        backward=False,
    ),
    Case(
        "sums",
        lambda x: op("utils.chunk_global_cumsum")(x.g),
        "g=BTH",
        lambda x: x.g.cumsum(1),
        backward=False,
    ),
    Case(
        "sums of vectors",
        lambda x: op("utils.chunk_global_cumsum")(x.g),
        "g=BTHK",
        lambda x: x.g.cumsum(1),
        backward=False,
    ),
    Case(
        "mean pooling",
        lambda x: op("utils.mean_pooling")(x.x, 16),
        "x=BTHK",
        lambda x: x.x.unflatten(1, (5, 16)).mean(2),
    ),
    Case(
        "softmax", lambda x: op("utils.softmax_fwd")(x.x), "x=BTD", lambda x: x.x.softmax(-1), backward=False
    ),
    Case(
        "softmax, backward",
        lambda x: op("utils.softmax_bwd")(x.p, x.d),
        "p=BTD/soft d=BTD",
        lambda x: x.p * (x.d - (x.p * x.d).sum(-1, keepdim=True)),
        backward=False,
    ),
    Case(
        "logsumexp",
        lambda x: op("utils.logsumexp_fwd")(x.x),
        "x=BTD",
        lambda x: x.x.logsumexp(-1),
        backward=False,
    ),
    Case("matmul", lambda x: op("utils.matmul")(x.a, x.b), "a=TD b=DK", lambda x: x.a @ x.b, backward=False),
    Case(
        "triangular inverse",
        lambda x: op("utils.solve_tril")(_strict(x.a)),
        "a=BTH,64/small",
        lambda x: _inverses(_strict(x.a)),
        backward=False,
    ),
    Case(
        "layer norm",
        lambda x: module("layernorm.layer_norm")(x.x, x.w, x.b),
        "x=BTD w=D b=D",
        lambda x: F.layer_norm(x.x, (64,), x.w, x.b),
    ),
    Case(
        "RMS norm",
        lambda x: module("layernorm.rms_norm")(x.x, x.w, x.b),
        "x=BTD w=D b=D",
        lambda x: F.rms_norm(x.x, (64,), x.w, 1e-5) + x.b,
    ),
    Case(
        "group norm",
        lambda x: module("layernorm.group_norm")(x.x, x.w, x.b, num_groups=4),
        "x=BTD w=D b=D",
        lambda x: F.group_norm(x.x.flatten(0, 1), 4, x.w, x.b).view_as(x.x),
    ),
    Case(
        "layer norm and linear",
        lambda x: module("layernorm.layer_norm_linear")(x.x, x.w, x.b, x.l, x.c),
        "x=BTD w=D b=D l=KD/small c=K",
        lambda x: F.linear(F.layer_norm(x.x, (64,), x.w, x.b), x.l, x.c),
    ),
    Case(
        "gated layer norm",
        lambda x: module("fused_norm_gate.layer_norm_gated")(x.x, x.g, x.w, x.b),
        "x=BTD g=BTD w=D b=D",
        lambda x: F.layer_norm(x.x, (64,), x.w, x.b) * F.silu(x.g),
    ),
    Case(
        "gated RMS norm",
        lambda x: module("fused_norm_gate.rms_norm_gated")(x.x, x.g, x.w, x.b),
        "x=BTD g=BTD w=D b=D",
        lambda x: (F.rms_norm(x.x, (64,), x.w, 1e-5) + x.b) * F.silu(x.g),
    ),
    Case("L2 norm", lambda x: module("l2norm.l2norm")(x.x), "x=BTD", lambda x: F.normalize(x.x, dim=-1)),
    Case(
        "rotary",
        lambda x: module("rotary.rotary_embedding")(x.x, x.c, x.s),
        "x=BTHK",
        lambda x: _rotated(x),
        fixed={"c": lambda: _angles().cos(), "s": lambda: _angles().sin()},
    ),
    Case(
        "short convolution",
        lambda x: first(module("convolution.causal_conv1d")(x.x, x.w, x.b, activation="silu")),
        "x=BTD w=DX b=D",
        lambda x: F.silu(_convolved(x) + x.b),
    ),
    Case(
        "token shift",
        lambda x: module("token_shift.token_shift")(x.x),
        "x=BTD",
        lambda x: F.pad(x.x, (0, 0, 1, -1)) - x.x,
    ),
    Case(
        "cross entropy",
        lambda x: module("fused_cross_entropy.FusedCrossEntropyLoss")()(x.x.flatten(0, 1), x.y),
        "x=BTD",
        lambda x: F.cross_entropy(x.x.flatten(0, 1), x.y),
        fixed={"y": lambda: torch.randint(0, 64, (160,))},
    ),
    Case(
        "linear cross entropy",
        lambda x: module("fused_linear_cross_entropy.FusedLinearCrossEntropyLoss")()(x.x, x.y, x.w, x.b),
        "x=BTD w=KD b=K",
        lambda x: F.cross_entropy(F.linear(x.x, x.w, x.b).flatten(0, 1), x.y.flatten()),
        fixed={"y": lambda: torch.randint(0, 32, (2, 80))},
    ),
    Case(
        "KL divergence of linears",
        lambda x: module("fused_kl_div.FusedKLDivLoss")()(x.x, x.t, x.w, x.u),
        "x=TD w=KD",
        lambda x: F.kl_div((x.x @ x.w.T).log_softmax(-1), (x.t @ x.u.T).softmax(-1), reduction="batchmean"),
        fixed={"t": lambda: torch.randn(80, 64), "u": lambda: torch.randn(32, 64)},
    ),
    Case("sigmoid", lambda x: module("activations.sigmoid")(x.x), "x=BTD", lambda x: x.x.sigmoid()),
    Case(
        "log sigmoid", lambda x: module("activations.logsigmoid")(x.x), "x=BTD", lambda x: F.logsigmoid(x.x)
    ),
    Case("swish", lambda x: module("activations.swish")(x.x), "x=BTD", lambda x: F.silu(x.x)),
    Case(
        "SwiGLU", lambda x: module("activations.swiglu")(x.x, x.y), "x=BTD y=BTD", lambda x: F.silu(x.x) * x.y
    ),
    Case(
        "SwiGLU and linear",
        lambda x: module("activations.swiglu_linear")(x.x, x.y, x.w, x.b),
        "x=BTD y=BTD w=KD b=K",
        lambda x: F.linear(F.silu(x.x) * x.y, x.w, x.b),
    ),
    Case(
        "sigmoid GLU",
        lambda x: module("activations.sigmoidglu")(x.x, x.y),
        "x=BTD y=BTD",
        lambda x: x.x.sigmoid() * x.y,
    ),
]


def _with(x: Any, **more: Any) -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(**{**vars(x), **more})


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


def _gsa(x: Any) -> torch.Tensor:
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
    return _gsa(_with(x, s=(x.s - total).exp(), g=before - total))


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


def _differences(g: torch.Tensor) -> torch.Tensor:
    total = heads(g.cumsum(1))
    return total[..., :, None] - total[..., None, :]


def _blocks() -> torch.Tensor:
    """For each token its own block of 16 and the first one."""
    own = torch.arange(80) // 16
    return torch.stack((torch.zeros_like(own), own), -1)[None, :, None]


def _sparse(x: Any) -> torch.Tensor:
    """Attention over the first and the own block of 16, gated."""
    length = x.q.shape[1]
    block = torch.arange(length) // 16
    hidden = (block[:, None] != block) & (block[None, :] != 0)
    k, v = x.k.expand(-1, -1, 16, -1), x.v.expand(-1, -1, 16, -1)
    return attention(x.q, k, v, torch.zeros(length, length).masked_fill(hidden, -1e30)) * x.g[..., None]


def _ttt(x: Any) -> torch.Tensor:
    return first(op("ttt.naive.chunk_ttt_linear_ref")(x.q * 1, x.k, x.v, x.w, x.b, x.eta, mini_batch_size=16))


def _strict(a: torch.Tensor) -> torch.Tensor:
    """In each chunk of 64 rows, below the diagonal only: ``[B, T, H, 64]``."""
    rows = torch.arange(a.shape[1]) % 64
    keep = torch.arange(64)[None, :] < rows[:, None]
    return (
        (a * keep[None, :, None, :].to(a)).detach()
        if a.device.type == "cpu"
        else a.detach() * keep.to(a.device)[None, :, None, :]
    )


def _inverses(a: torch.Tensor) -> torch.Tensor:
    out = []
    for part in a.split(64, 1):
        size = part.shape[1]
        square = heads(part)[..., :size]
        inverse = torch.linalg.inv(torch.eye(size) + square)
        out.append(F.pad(heads(inverse), (0, 64 - size)))
    return torch.cat(out, 1)


def _angles() -> torch.Tensor:
    return torch.arange(80.0)[:, None] / 10_000 ** (torch.arange(16.0) / 16)


def _rotated(x: Any) -> torch.Tensor:
    one, two = x.x.chunk(2, -1)
    cos, sin = x.c[None, :, None], x.s[None, :, None]
    return torch.cat((one * cos - two * sin, one * sin + two * cos), -1)


def _convolved(x: Any) -> torch.Tensor:
    out = F.conv1d(F.pad(x.x.transpose(1, 2), (3, 0)), x.w[:, None], groups=64)
    return out.transpose(1, 2)
