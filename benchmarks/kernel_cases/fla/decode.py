"""One more token after a cache: what generation launches."""

from __future__ import annotations

from typing import Any

import torch

from kernel_cases.cases import Case, attention, first
from kernel_cases.fla.decay import slots
from kernel_cases.fla.names import QKV, op


def _last_of_each(x: Any) -> torch.Tensor:
    """For each sequence of a packed cache, attention of one query."""
    out = []
    for n, (start, end) in enumerate(((0, 30), (30, 80))):
        k, v = x.k[0, start:end], x.v[0, start:end]
        scores = torch.einsum("hd,thd->ht", x.q[0, n], k) * x.q.shape[-1] ** -0.5
        out.append(torch.einsum("ht,thd->hd", scores.softmax(-1), v))
    return torch.stack(out)[None]


def _wall(x: Any) -> torch.Tensor:
    total = x.g.cumsum(1) * 1.4426950216
    keys, starts = op("wall_attn.decode.build_wall_kv_cache")(x.k, total, 16)
    return first(
        op("wall_attn.decode.parallel_wall_attn_decode")(
            x.q[:, -1:].contiguous(),
            x.v,
            total[:, -1:].contiguous(),
            keys,
            starts,
            None,
            scale=x.q.shape[-1] ** -0.5,
            cache_chunk_size=16,
        )
    )


def _wall_plain(x: Any) -> torch.Tensor:
    total = x.g.cumsum(1)
    return attention(x.q * total.exp(), x.k * (-total).exp(), x.v)[:, -1:]


def _mesa(x: Any, name: str) -> Any:
    before = x.a @ x.a.transpose(-1, -2)
    return op(name)(x.q, x.k, x.v, x.g, x.lamb, x.beta, before, x.c)


def _turned_keys(x: Any) -> torch.Tensor:
    """Every key after the reflections of the tokens that follow it."""
    keys = x.k.clone()
    for t in range(1, x.k.shape[1]):
        along = torch.einsum("bjhk,bhk->bjh", keys[:, :t], x.w[:, t]) * x.beta[:, t, None]
        keys[:, :t] = keys[:, :t] - along[..., None] * x.w[:, t, None]
    return keys


CASES = [
    Case(
        "softmax attention, one token",
        lambda x: op("attn.decoding.attn_decoding_one_step")(x.q, x.k, x.v, cu_seqlens=x.ends),
        "q=1BHK k=1THK v=1THV",
        _last_of_each,
        fixed={"ends": lambda: torch.tensor([0, 30, 80])},
        backward=False,
    ),
    Case(
        "Parallax attention after a cache",
        lambda x: op("parallax.decode.parallax_decode")(x.q[:, 60:], x.r[:, 60:], x.k, x.v),
        f"{QKV} r=BTHK/small",
        lambda x: op("parallax.naive.naive_parallax")(x.q, x.r, x.k, x.v)[:, 60:],
        backward=False,
    ),
    Case(
        "Parallax attention, one token",
        lambda x: op("parallax.decode.parallax_decode_one_step")(x.q[:, -1:], x.r[:, -1:], x.k, x.v),
        f"{QKV} r=BTHK/small",
        lambda x: op("parallax.naive.naive_parallax")(x.q, x.r, x.k, x.v)[:, -1:],
        backward=False,
    ),
    Case("wall attention, one token", _wall, f"{QKV} g=BTHK/slow", _wall_plain, backward=False),
    Case(
        "MesaNet, one token",
        lambda x: _mesa(x, "mesa_net.decoding_one_step.mesa_net_decoding_one_step"),
        "q=BHK/unit k=BHK/unit v=BHV g=BH/gate beta=BH/sig lamb=HK/pos a=BHKK/small c=BHKV",
        lambda x: _mesa(x, "mesa_net.naive.naive_mesa_net_decoding_one_step"),
        backward=False,
    ),
    Case(
        "gated slot attention, one token",
        lambda x: first(op("gsa.fused_recurrent_gsa")(x.q, x.k, x.v, x.s, x.g)),
        "q=B1HK k=B1HK v=B1HV s=B1HM/sig g=B1HM/slow",
        slots,
        backward=False,
    ),
    Case(
        "PaTH attention, keys for a cache",
        lambda x: op("path_attn.parallel_path_attn")(x.q, x.k, x.v, x.w, x.beta, x.g, use_cache=True)[1],
        "q=BTHK k=BTHK v=BTHV w=BTHK/unit beta=BTH/sig g=BTH/gate",
        _turned_keys,
        backward=False,
    ),
]
