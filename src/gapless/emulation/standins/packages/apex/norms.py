"""``apex.normalization``: layer norm and RMS norm in one kernel each way."""

from __future__ import annotations

import numbers
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gapless.emulation.standins.launch import differentiable
from gapless.emulation.standins.norms import normalize
from gapless.emulation.standins.packages.apex._package import PACKAGE

_MODULES = ("apex.normalization", "apex.normalization.fused_layer_norm")
_FUNCTIONS = _MODULES[1]


def _norm(
    rms: bool, shape: Any, eps: float, dtype: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    return normalize(x, shape, weight, bias, eps, rms=rms).to(dtype)


def _launch_norm(
    rms: bool,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    shape: Any,
    eps: float,
    mixed: bool = False,
) -> Tensor:
    """`mixed` gives the dtype of the weight, else of the input; under autocast inputs are cast first."""
    shape = (shape,) if isinstance(shape, numbers.Integral) else tuple(shape)
    if x.is_cuda and torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        x, weight, bias = (None if tensor is None else tensor.to(dtype) for tensor in (x, weight, bias))  # type: ignore[assignment]
    name = "rms" if rms else "layer_norm"
    dtype = weight.dtype if mixed and weight is not None else x.dtype
    body = partial(_norm, rms, shape, eps, dtype)
    return differentiable(  # type: ignore[no-any-return]
        f"apex::{name}_forward", body, x, weight, bias, backward=f"apex::{name}_backward", anywhere=True
    )


def _layer_norm_affine(
    mixed: bool,
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    normalized_shape: Any,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    return _launch_norm(False, input, weight, bias, normalized_shape, eps, mixed)


def _rms_norm_affine(
    mixed: bool,
    input: Tensor,
    weight: Tensor,
    normalized_shape: Any,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    return _launch_norm(True, input, weight, None, normalized_shape, eps, mixed)


fused_layer_norm_affine = partial(_layer_norm_affine, False)
mixed_dtype_fused_layer_norm_affine = partial(_layer_norm_affine, True)
fused_rms_norm_affine = partial(_rms_norm_affine, False)
mixed_dtype_fused_rms_norm_affine = partial(_rms_norm_affine, True)
PACKAGE.holds(
    _FUNCTIONS,
    fused_layer_norm_affine=fused_layer_norm_affine,
    mixed_dtype_fused_layer_norm_affine=mixed_dtype_fused_layer_norm_affine,
    fused_rms_norm_affine=fused_rms_norm_affine,
    mixed_dtype_fused_rms_norm_affine=mixed_dtype_fused_rms_norm_affine,
)


@PACKAGE.provides(_FUNCTIONS)
def fused_layer_norm(
    input: Tensor, normalized_shape: Any, eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    """Layer norm."""
    return _launch_norm(False, input, None, None, normalized_shape, eps)


@PACKAGE.provides(_FUNCTIONS)
def fused_rms_norm(
    input: Tensor, normalized_shape: Any, eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    """RMS norm."""
    return _launch_norm(True, input, None, None, normalized_shape, eps)


@PACKAGE.provides(*_MODULES)
class FusedLayerNorm(torch.nn.Module):
    """Layer norm over the last dimensions, of `normalized_shape`."""

    weight: Any
    bias: Any
    _rms = _mixed = False

    def __init__(
        self,
        normalized_shape: Any,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        *,
        memory_efficient: bool = False,
        **_: Any,
    ) -> None:
        super().__init__()
        whole = isinstance(normalized_shape, numbers.Integral)
        self.normalized_shape = torch.Size((normalized_shape,) if whole else normalized_shape)
        self.eps, self.elementwise_affine, self.memory_efficient = eps, elementwise_affine, memory_efficient
        weight = torch.nn.Parameter(torch.ones(self.normalized_shape)) if elementwise_affine else None
        self.register_parameter("weight", weight)
        if not self._rms:
            self.register_parameter(
                "bias", None if weight is None else torch.nn.Parameter(torch.zeros_like(weight))
            )

    def reset_parameters(self) -> None:
        """Ones, and zeros for the bias."""
        if self.elementwise_affine:
            torch.nn.init.ones_(self.weight)
            if not self._rms:
                torch.nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """`input` normalized."""
        bias = None if self._rms else self.bias
        return _launch_norm(
            self._rms, input, self.weight, bias, self.normalized_shape, self.eps, mixed=self._mixed
        )

    def extra_repr(self) -> str:
        return f"{tuple(self.normalized_shape)}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


@PACKAGE.provides(*_MODULES)
class FusedRMSNorm(FusedLayerNorm):
    """RMS norm over the last dimensions."""

    _rms = True


@PACKAGE.provides(*_MODULES)
class MixedFusedLayerNorm(FusedLayerNorm):
    """Layer norm in the dtype of its weight."""

    _mixed = True


@PACKAGE.provides(*_MODULES)
class MixedFusedRMSNorm(FusedRMSNorm):
    """RMS norm in the dtype of its weight."""

    _mixed = True
