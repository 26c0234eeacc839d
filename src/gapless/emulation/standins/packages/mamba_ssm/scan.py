"""``mamba_ssm.ops.selective_scan_interface`` and ``selective_state_update``: the first Mamba's scan."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gapless.emulation.standins.launch import differentiable, launch
from gapless.emulation.standins.packages.causal_conv1d import causal_conv1d_fn
from gapless.emulation.standins.packages.mamba_ssm._package import PACKAGE

_SCAN = ("mamba_ssm", "mamba_ssm.ops.selective_scan_interface")


def _with_groups(tensor: Tensor, channels: int) -> Tensor:
    """Return `B` or `C` as ``[batch or 1, channels or 1, states, length or 1]`` in float32."""
    tensor = tensor.float()
    if tensor.dim() == 2:
        return tensor[None, :, :, None]
    if tensor.dim() == 3:
        return tensor[:, None]
    return tensor.repeat_interleave(channels // tensor.shape[1], 1)


def _scan(
    soft: bool,
    last: bool,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    bias: Tensor | None,
) -> Any:
    """A linear recurrence along ``[batch, channels, length]``, in float32."""
    x, d = u.float(), delta.float()
    d = d if bias is None else d + bias.float()[:, None]
    d = functional.softplus(d) if soft else d
    decay = torch.exp(d[:, :, None] * A.float()[None, :, :, None])
    b, c = _with_groups(B, u.shape[1]), _with_groups(C, u.shape[1])
    added = (d * x)[:, :, None] * b
    c = c.expand(u.shape[0], u.shape[1], -1, u.shape[2])
    state = torch.zeros(u.shape[0], u.shape[1], A.shape[1])
    outputs = []
    for at in range(u.shape[2]):
        state = decay[..., at] * state + added[..., at]
        outputs.append((state * c[..., at]).sum(-1))
    out = torch.stack(outputs, -1)
    out = out if D is None else out + x * D.float()[:, None]
    out = (out if z is None else out * functional.silu(z.float())).to(u.dtype)
    return (out, state) if last else out


def _outline(last: bool, u: Tensor, delta: Tensor, A: Tensor, *_: Any) -> Any:
    out = torch.empty_like(u, memory_format=torch.contiguous_format)
    return (out, u.new_empty(u.shape[0], u.shape[1], A.shape[1], dtype=torch.float32)) if last else out


@PACKAGE.provides(*_SCAN)
def selective_scan_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> Any:
    """Scan ``[batch, channels, length]``; the last state has no gradient.

    Raises:
        NotImplementedError: `A` is complex.
    """
    if A.is_complex():
        raise NotImplementedError("the stand-in for mamba_ssm's selective_scan_fn takes no complex A")
    return differentiable(
        "mamba_ssm::selective_scan_fwd",
        partial(_scan, delta_softplus, return_last_state),
        u,
        delta,
        A,
        B,
        C,
        D,
        z,
        delta_bias,
        backward="mamba_ssm::selective_scan_bwd",
        constants=int(return_last_state),
        shaped=partial(_outline, return_last_state),
    )


@PACKAGE.provides(*_SCAN)
def mamba_inner_fn(
    xz: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    x_proj_weight: Tensor,
    delta_proj_weight: Tensor,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    A: Tensor,
    B: Tensor | None = None,
    C: Tensor | None = None,
    D: Tensor | None = None,
    delta_bias: Tensor | None = None,
    B_proj_bias: Tensor | None = None,
    C_proj_bias: Tensor | None = None,
    delta_softplus: bool = True,
    checkpoint_lvl: int = 1,
    b_rms_weight: Tensor | None = None,
    c_rms_weight: Tensor | None = None,
    dt_rms_weight: Tensor | None = None,
    b_c_dt_rms_eps: float = 1e-6,
) -> Tensor:
    """Convolution, projections and scan of a layer; `xz` is ``[batch, 2 * channels, length]``."""
    rank, states = delta_proj_weight.shape[1], A.shape[1]
    x, z = xz.chunk(2, dim=1)
    x = causal_conv1d_fn(x, conv1d_weight.squeeze(1), conv1d_bias, activation="silu")
    parts = functional.linear(x.transpose(1, 2), x_proj_weight)

    def normalize(tensor: Tensor, weight: Tensor | None) -> Tensor:
        return (
            tensor
            if weight is None
            else functional.rms_norm(tensor, tensor.shape[-1:], weight, b_c_dt_rms_eps)
        )

    def project(tensor: Tensor, bias: Tensor | None, weight: Tensor | None) -> Tensor:
        tensor = normalize(tensor if bias is None else tensor + bias.to(tensor.dtype), weight)
        return tensor.transpose(1, 2).contiguous()

    steps = normalize(parts[..., :rank], dt_rms_weight)
    delta = functional.linear(steps, delta_proj_weight).transpose(1, 2)
    B = project(parts[..., rank : rank + states], B_proj_bias, b_rms_weight) if B is None else B
    C = project(parts[..., -states:], C_proj_bias, c_rms_weight) if C is None else C
    out = selective_scan_fn(x, delta, A, B, C, D, z, delta_bias, delta_softplus)
    return functional.linear(out.transpose(1, 2), out_proj_weight, out_proj_bias)


@PACKAGE.provides("mamba_ssm.ops.triton.selective_state_update")
def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
) -> Tensor:
    """Compute one step of a scan; `state` ``[batch, (heads,) channels, states]`` is updated in place."""

    def body(state: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, *rest: Any) -> Tensor:
        D, z, bias, rows = rest
        held = state if rows is None else state[rows.long()]
        whole = held if held.dim() == 4 else held[:, None]
        heads = whole.shape[1]

        def by_head(tensor: Any, dims: int) -> Any:
            return tensor if tensor is None or tensor.dim() == dims else tensor.unsqueeze(dims - 2)

        own, step = by_head(x, 3), by_head(dt, 3)
        d = step.float() if bias is None else step.float() + by_head(bias, 2).float()
        d = functional.softplus(d) if dt_softplus else d
        a = A if A.dim() == 3 else A[None]
        b, c = ((tensor if tensor.dim() == 3 else tensor[:, None]).float() for tensor in (B, C))
        b, c = (tensor.repeat_interleave(heads // tensor.shape[1], 1) for tensor in (b, c))
        new = (
            whole.float() * torch.exp(d[..., None] * a.float()) + (d * own.float())[..., None] * b[:, :, None]
        )
        new = new.to(state.dtype)
        out = (new.float() * c[:, :, None]).sum(-1)
        out = out if D is None else out + own.float() * by_head(D, 2).float()
        out = out if z is None else out * functional.silu(by_head(z, 3).float())
        new = new if held.dim() == 4 else new[:, 0]
        if rows is None:
            state.copy_(new)
        else:
            state[rows.long()] = new
        return out.to(x.dtype) if held.dim() == 4 else out[:, 0].to(x.dtype)

    with torch.no_grad():
        out: Tensor = launch(
            "mamba_ssm::_selective_scan_update_kernel",
            body,
            state, x, dt, A, B, C, D, z, dt_bias, state_batch_indices,
        )  # fmt: skip
    return out
