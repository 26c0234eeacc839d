"""``mamba_ssm.ops.triton.ssd_combined``: the second Mamba's scan, in chunks."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gapless.emulation.standins.launch import differentiable
from gapless.emulation.standins.packages.causal_conv1d import causal_conv1d_fn
from gapless.emulation.standins.packages.mamba_ssm._package import PACKAGE
from gapless.emulation.standins.packages.mamba_ssm.norms import rmsnorm_fn

_MODULE = "mamba_ssm.ops.triton.ssd_combined"
_CHUNK = 64
"""Positions computed at once: memory grows with their square, the number of calls with their inverse."""
_NO_LIMIT = (0.0, math.inf)


def _scan_chunks(
    soft: bool,
    limit: tuple[float, float],
    last: bool,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    bias: Tensor | None,
    first: Tensor | None,
    ids: Tensor | None,
) -> Any:
    """Compute the recurrence over ``[batch, length, heads, width]``, chunk by chunk, in float32."""
    batch, length, heads, width = x.shape
    d = dt.float() if bias is None else dt.float() + bias.float()
    d = functional.softplus(d) if soft else d
    d = d.clamp(*limit)
    b, c = (tensor.float().repeat_interleave(heads // tensor.shape[2], 2) for tensor in (B, C))
    rate, inputs = d * A.float(), x.float() * d[..., None]
    state = first.float() if first is not None else torch.zeros(batch, heads, width, B.shape[-1])
    before = ids[:, 0] if ids is not None else None
    outputs = []
    for at in range(0, length, _CHUNK):
        part = slice(at, at + _CHUNK)
        own = None if ids is None else ids[:, part]
        out, state = _scan_chunk(rate[:, part], inputs[:, part], b[:, part], c[:, part], state, own, before)
        before = None if own is None else own[:, -1]
        outputs.append(out)
    out = torch.cat(outputs, 1)
    if D is not None:
        out = out + x.float() * (D.float() if D.dim() == 2 else D.float()[:, None])
    out = (out if z is None else out * functional.silu(z.float())).to(x.dtype)
    return (out, state.to(x.dtype)) if last else out


def _scan_chunk(
    rate: Tensor,
    inputs: Tensor,
    b: Tensor,
    c: Tensor,
    state: Tensor,
    ids: Tensor | None,
    before: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return a chunk's output and the state after it; sequences do not affect each other."""
    sums = rate.cumsum(1)
    gap = (sums[:, :, None] - sums[:, None]).permute(0, 3, 1, 2)
    size = sums.shape[1]
    open_ = torch.ones(size, size, dtype=torch.bool).tril()
    entering, leaving = torch.exp(sums), torch.exp(sums[:, -1:] - sums)
    carried = torch.exp(sums[:, -1])
    if ids is not None and before is not None:
        open_ = open_ & (ids[:, None, :, None] == ids[:, None, None])
        entering = entering * (ids == before[:, None])[..., None]
        leaving = leaving * (ids == ids[:, -1:])[..., None]
        carried = carried * (ids[:, -1] == before)[:, None]
    decay = torch.exp(gap.masked_fill(~open_, -math.inf))
    scores = torch.einsum("bihn,bjhn->bhij", c, b) * decay
    out = torch.einsum("bhij,bjhp->bihp", scores, inputs)
    out = out + torch.einsum("bihn,bhpn->bihp", c * entering[..., None], state)
    added = torch.einsum("bjhp,bjhn->bhpn", inputs * leaving[..., None], b)
    return out, carried[..., None, None] * state + added


@PACKAGE.provides(_MODULE)
def mamba_chunk_scan_combined(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = _NO_LIMIT,
    return_final_states: bool = False,
    return_varlen_states: bool = False,
    state_dtype: Any = None,
) -> Any:
    """The scan over ``[batch, length, heads, width]``, in the five kernels of the package.

    Raises:
        NotImplementedError: states of each sequence are asked for.
    """
    if return_varlen_states:
        raise NotImplementedError(
            "the stand-in for mamba_ssm returns no states for sequences of different lengths"
        )
    body = partial(_scan_chunks, dt_softplus, dt_limit, return_final_states)
    return differentiable(
        "mamba_ssm::mamba_chunk_scan_combined_fwd",
        body,
        x, dt, A, B, C, D, z, dt_bias, initial_states, seq_idx,
        backward="mamba_ssm::mamba_chunk_scan_combined_bwd",
        shaped=partial(_outline, return_final_states),
    )  # fmt: skip


def _outline(last: bool, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, *_: Any) -> Any:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    return (out, x.new_empty(x.shape[0], *x.shape[2:], B.shape[-1])) if last else out


@PACKAGE.provides(_MODULE)
def mamba_split_conv1d_scan_combined(
    zxbcdt: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    dt_bias: Tensor,
    A: Tensor,
    D: Tensor,
    chunk_size: int,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    dt_limit: tuple[float, float] = _NO_LIMIT,
    return_final_states: bool = False,
    activation: str = "silu",
    rmsnorm_weight: Tensor | None = None,
    rmsnorm_eps: float = 1e-6,
    outproj_weight: Tensor | None = None,
    outproj_bias: Tensor | None = None,
    headdim: int | None = None,
    ngroups: int = 1,
    norm_before_gate: bool = True,
    state_dtype: Any = None,
) -> Any:
    """Convolution, scan, norm and output projection of a layer, from one projection of its input."""
    heads, width = D.shape if D.dim() == 2 else (D.shape[0], headdim or 0)
    wide = heads * width
    states = (zxbcdt.shape[-1] - 2 * wide - heads) // ngroups // 2
    z, xbc, dt = torch.split(zxbcdt, [wide, wide + 2 * ngroups * states, heads], dim=-1)
    moved = xbc.transpose(1, 2)
    xbc = causal_conv1d_fn(moved, conv1d_weight, conv1d_bias, seq_idx, activation=activation).transpose(1, 2)
    x, B, C = torch.split(xbc, [wide, ngroups * states, ngroups * states], dim=-1)
    out = mamba_chunk_scan_combined(
        x.unflatten(-1, (heads, width)),
        dt,
        A,
        B.unflatten(-1, (ngroups, states)),
        C.unflatten(-1, (ngroups, states)),
        chunk_size,
        D,
        z.unflatten(-1, (heads, width)) if rmsnorm_weight is None else None,
        dt_bias,
        initial_states,
        seq_idx,
        dt_softplus=True,
        dt_limit=dt_limit,
        return_final_states=return_final_states,
    )
    out, last = out if return_final_states else (out, None)
    out = out.flatten(2)
    if rmsnorm_weight is not None:
        size = wide // ngroups
        out = rmsnorm_fn(
            out, rmsnorm_weight, None, z, rmsnorm_eps, group_size=size, norm_before_gate=norm_before_gate
        )
    if outproj_weight is not None:
        out = functional.linear(out, outproj_weight, outproj_bias)
    return (out, last) if return_final_states else out
