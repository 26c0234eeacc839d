"""``mamba_ssm.ops.triton.layernorm_gated`` and ``layer_norm``: norms with a gate, and with a residual."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gapless.emulation.standins.launch import differentiable
from gapless.emulation.standins.norms import normalize
from gapless.emulation.standins.packages.flash_attn import norms as flash
from gapless.emulation.standins.packages.mamba_ssm._package import PACKAGE

_GATED, _PLAIN = "mamba_ssm.ops.triton.layernorm_gated", "mamba_ssm.ops.triton.layer_norm"
PACKAGE.holds(
    _PLAIN, layer_norm_fn=flash.layer_norm_fn, rms_norm_fn=flash.rms_norm_fn, RMSNorm=flash.TritonRMSNorm
)


def gated_norm(
    eps: float,
    group: int | None,
    before: bool,
    rms: bool,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None,
) -> Tensor:
    """Return the norm of `x` over groups of its last dimension, gated by `z` after it unless `before`."""
    wide = x.float()
    if z is not None and not before:
        wide = wide * functional.silu(z.float())
    group = group or x.shape[-1]
    out = normalize(wide.unflatten(-1, (-1, group)), (group,), None, None, eps, rms=rms).flatten(-2)
    out = out * weight.float()
    out = out if bias is None else out + bias.float()
    if z is not None and before:
        out = out * functional.silu(z.float())
    return out.to(x.dtype)


@PACKAGE.provides(_GATED)
def layernorm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = True,
    is_rms_norm: bool = False,
) -> Tensor:
    """Norm of `x` and, with `z`, its gate."""
    body = partial(gated_norm, eps, group_size, norm_before_gate, is_rms_norm)
    return differentiable(  # type: ignore[no-any-return]
        "mamba_ssm::_layer_norm_fwd", body, x, weight, bias, z, backward="mamba_ssm::_layer_norm_bwd"
    )


@PACKAGE.provides(_GATED)
def rmsnorm_fn(x: Tensor, weight: Tensor, bias: Tensor | None, *args: Any, **kwargs: Any) -> Tensor:
    """`layernorm_fn` that leaves the mean in."""
    return layernorm_fn(x, weight, bias, *args, **{**kwargs, "is_rms_norm": True})


@PACKAGE.provides(_GATED)
class LayerNorm(torch.nn.Module):
    """Layer norm with a gate."""

    bias: Any
    _rms = False

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        group_size: int | None = None,
        norm_before_gate: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.eps, self.group_size, self.norm_before_gate = eps, group_size, norm_before_gate
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        bias = None if self._rms else torch.nn.Parameter(torch.zeros_like(self.weight))
        self.register_parameter("bias", bias)

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """`x` normalized and gated by `z`."""
        return layernorm_fn(
            x, self.weight, self.bias, z, self.eps, self.group_size, self.norm_before_gate, self._rms
        )


@PACKAGE.provides(_GATED)
class RMSNorm(LayerNorm):
    """RMS norm with a gate."""

    _rms = True
