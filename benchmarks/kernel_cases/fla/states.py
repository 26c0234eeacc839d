"""States of chunks by other ways than the usual, safe gates, and the delta form of attention."""

from __future__ import annotations

from typing import Any

import torch

from kernel_cases.cases import Case, first, heads
from kernel_cases.fla.gates import summed
from kernel_cases.fla.names import QKV, UNIT, op

STATE = {"g": lambda: torch.nn.functional.logsigmoid(torch.randn(2, 160, 2))}


def _states(x: Any, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The states before every `size` tokens, and the last one."""
    state, before = torch.zeros(2, 2, 32, 32), []
    for t in range(x.k.shape[1]):
        if t % size == 0:
            before.append(state)
        kv = torch.einsum("bhk,bhv->bhkv", x.k[:, t], x.v[:, t])
        state = state * x.g[:, t].exp()[..., None, None] + kv
    return torch.stack(before, 1), state


def _gradients(x: Any, size: int) -> torch.Tensor:
    """The gradients of the states after every `size` tokens."""
    state, after = torch.zeros(2, 2, 32, 32), []
    for t in reversed(range(x.q.shape[1])):
        if t % size == size - 1 or t == x.q.shape[1] - 1:
            after.append(state)
        qd = torch.einsum("bhk,bhv->bhkv", x.q[:, t] * 0.25, x.d[:, t])
        state = (state + qd) * x.g[:, t].exp()[..., None, None]
    return torch.stack(after[::-1], 1)


def _compared(x: Any) -> torch.Tensor:
    """``beta k·k'`` below the diagonal of chunks of 64."""
    total, parts = summed(x.g, 64), []
    for at in range(0, x.k.shape[1], 64):
        k, g = x.k[:, at : at + 64], total[:, at : at + 64]
        change = (heads(g)[..., :, None] - heads(g)[..., None, :]).tril(-1).exp()
        scores = (torch.einsum("bqhd,bkhd->bhqk", k, k) * change).tril(-1)
        scores = heads(scores) * x.beta[:, at : at + 64, :, None]
        parts.append(torch.nn.functional.pad(scores, (0, 64 - k.shape[1])))
    return torch.cat(parts, 1)


def _backward_summary(x: Any) -> torch.Tensor:
    """What a part of a sequence does to the gradient of the state after it: ``[H, K, V + K]``."""
    summary = torch.cat((torch.zeros(2, 32, 32), torch.eye(32).expand(2, 32, 32)), -1)
    for at in (64, 0):
        q, k, w, d, v = (heads(tensor[:, at : at + 64])[0] for tensor in (x.q, x.k, x.w, x.d, x.v))
        values = k @ summary + torch.nn.functional.pad(v, (0, 32))
        direct = torch.nn.functional.pad(0.25 * q.transpose(1, 2) @ d, (0, 32))
        summary = summary + direct - w.transpose(1, 2) @ values
    return summary


def _summarized(x: Any) -> torch.Tensor:
    states = torch.empty(2, 32, 64, device=x.q.device)
    op("cp.chunk_bwd.chunk_cp_bwd_dh")(x.q, x.k, x.w, x.d, x.v, states, scale=0.25)
    return states


def _split(x: Any) -> torch.Tensor:
    with torch.inference_mode():
        return first(
            op("gated_delta_rule.chunk_gated_delta_rule")(x.q, x.k, x.v, x.g, x.beta, cu_seqlens=x.ends)
        )


def _pooled(value: torch.Tensor) -> torch.Tensor:
    return value.unflatten(1, (5, 16)).mean(2)


def _compressed(x: Any) -> torch.Tensor:
    scale = x.q.shape[-1] ** -0.5
    k, v = _pooled(x.k), _pooled(x.v)
    whole = first(op("nsa.naive.naive_nsa_compression")(x.q, k, v, 16, scale))
    blocks = op("nsa.naive.naive_nsa_topk")(x.q.detach(), k.detach(), 4, 16, scale)
    picked = op("nsa.naive.naive_nsa_selection")(x.q, x.k, x.v, blocks, 16, scale)
    return whole * x.c[..., None] + picked * x.g[..., None]


def _corrected_values(x: Any) -> torch.Tensor:
    """DeltaFormer's values: each less what attention to those before gives."""
    scores = torch.einsum("bqhd,bkhd->bhqk", x.q, x.k) * x.q.shape[-1] ** -0.5
    weights = op("deltaformer.naive.tril_softmax")(scores) * heads(x.beta)[..., None]
    solved = torch.linalg.solve(torch.eye(weights.shape[-1]) + weights, heads(x.v))
    return heads(solved)


def _two_parts(x: Any) -> torch.Tensor:
    """Log-linear attention of 40 tokens, and of the rest after their state."""
    run = op("log_linear_attn.chunk_log_linear_attn")
    names = ("q", "k", "v", "g", "levels")
    out, state = run(*(getattr(x, name)[:, :40].contiguous() for name in names), output_final_state=True)
    two, _ = run(*(getattr(x, name)[:, 40:].contiguous() for name in names), initial_state=state)
    return torch.cat((out, two), 1)


CASES = [
    Case(
        "states of chunks, side by side",
        lambda x: op("common.chunk_h_parallel.chunk_fwd_h")(
            x.k, x.v, summed(x.g, 64), None, None, None, True, True
        ),
        "k=2,160,HK/small v=2,160,HV",
        lambda x: _states(x, 64),
        fixed=STATE,
        backward=False,
    ),
    Case(
        "states of chunks, side by side, backward",
        lambda x: first(
            op("common.chunk_h_parallel.chunk_bwd_dh")(
                x.q, x.k, x.v, summed(x.g, 64), None, None, x.d, None, None, 0.25, True
            )
        ),
        "q=2,160,HK/small k=2,160,HK v=2,160,HV d=2,160,HV",
        lambda x: _gradients(x, 64),
        fixed=STATE,
        backward=False,
    ),
    Case(
        "states of chunks, in splits",
        lambda x: op("common.chunk_h_split.chunk_fwd_h")(
            x.k, x.v, summed(x.g, 32), None, None, None, True, chunk_size=32, split_size=64
        )[1],
        "k=2,160,HK/small v=2,160,HV",
        lambda x: _states(x, 64)[1],
        fixed=STATE,
        backward=False,
    ),
    Case(
        "states of chunks, in splits, backward",
        lambda x: first(
            op("common.chunk_h_split.chunk_bwd_dh")(
                *(x.q, x.k, x.v, summed(x.g, 32), None, None, x.d, None, None, 0.25),
                chunk_size=32,
                split_size=64,
            )
        ).unflatten(0, (2, 3)),
        "q=2,160,HK/small k=2,160,HK v=2,160,HV d=2,160,HV",
        lambda x: _gradients(x, 64),
        fixed=STATE,
        backward=False,
    ),
    Case(
        "gated delta rule, chunk, a long sequence in parts",
        _split,
        "q=1,256,HK/unit k=1,256,HK/unit v=1,256,HV g=1,256,H/gate beta=1,256,H/sig",
        lambda x: first(
            op("gated_delta_rule.naive.naive_recurrent_gated_delta_rule")(x.q, x.k, x.v, x.beta, x.g)
        ),
        fixed={"ends": lambda: torch.tensor([0, 256])},
        knobs={"fla.ops.common.intracard_cp.compute_subseq_len": lambda **_: 64},
        environment={"FLA_INTRACARD_CP": "1"},
        backward=False,
    ),
    Case(
        "gated delta rule, a part's summary, backward",
        _summarized,
        "q=1,128,HK/small k=1,128,HK/unit w=1,128,HK/small d=1,128,HV v=1,128,HV",
        _backward_summary,
        backward=False,
    ),
    Case(
        "products of keys",
        lambda x: op("gated_oja_rule.chunk_kkt.chunk_scaled_dot_kkt_fwd")(x.k, summed(x.g, 64), None, x.beta),
        "k=BTHK g=BTH/gate beta=BTH/sig",
        _compared,
        backward=False,
    ),
    Case(
        "Kimi delta attention, safe gate",
        lambda x: first(op("kda.chunk_kda")(x.q, x.k, x.v, x.g, x.beta, safe_gate=True)),
        f"{UNIT} g=BTHK/slow beta=BTH/sig",
        lambda x: first(op("kda.naive.naive_recurrent_kda")(x.q, x.k, x.v, x.g, x.beta)),
    ),
    Case(
        "gdn2, safe gate",
        lambda x: first(op("gdn2.chunk_gdn2")(x.q, x.k, x.v, x.g, x.b, x.w, safe_gate=True)),
        f"{UNIT} g=BTHK/slow b=BTHK/sig w=BTHV/sig",
        lambda x: first(op("gdn2.naive.naive_recurrent_gdn2")(x.q, x.k, x.v, x.g, x.b, x.w)),
    ),
    Case(
        "MesaNet, chunk, with little shared memory",
        lambda x: first(op("mesa_net.chunk_mesa_net")(x.q, x.k, x.v, x.g, x.beta, x.lamb + 1)),
        f"{UNIT} g=BTH/gate beta=BTH/sig lamb=HK/pos",
        lambda x: first(op("mesa_net.naive.naive_mesa_net_exact")(x.q, x.k, x.v, x.g, x.lamb + 1, x.beta)),
        knobs={"fla.ops.mesa_net.chunk_h_kv_intra_bwd.check_shared_mem": lambda *_: False},
    ),
    Case(
        "native sparse attention, compressed",
        lambda x: first(
            op("nsa.parallel_nsa")(x.q, x.k, x.v, x.c, x.g, None, None, block_counts=4, block_size=16)
        ),
        "q=1,80,16,32 k=1,80,1,32 v=1,80,1,32 g=1,80,16/sig c=1,80,16/sig",
        _compressed,
    ),
    Case(
        "DeltaFormer, values",
        lambda x: op("deltaformer.parallel.ParallelDeltaformerFunction").apply(x.q, x.k, x.v, x.beta, 64),
        "q=2,128,HK k=2,128,HK v=2,128,HV beta=2,128,H/sig",
        _corrected_values,
    ),
    Case(
        "stick-breaking attention",
        lambda x: op("stickbreaking_attn.parallel_stickbreaking_attn")(x.q, x.k, x.v),
        QKV,
        lambda x: op("stickbreaking_attn.naive_stickbreaking_attn")(x.q, x.k, x.v),
    ),
    Case(
        "log-linear attention, chunk, in two parts",
        _two_parts,
        "q=BTN,64/small k=BTN,64/small v=BT,2,64 g=BTH/gate levels=BTH,8/sig",
        lambda x: op("log_linear_attn.naive.naive_log_linear_attn")(
            x.q.expand(-1, -1, 2, -1), x.k.expand(-1, -1, 2, -1), x.v, x.g, x.levels
        ),
        backward=False,
    ),
]
