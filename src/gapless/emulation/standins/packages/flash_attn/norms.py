"""Norms with dropout and a residual in one kernel: ``flash_attn.ops`` and Triton's."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gapless.emulation.standins.launch import differentiable
from gapless.emulation.standins.norms import normalize
from gapless.emulation.standins.packages.flash_attn._package import PACKAGE

_LAYER, _RMS, _TRITON = (f"flash_attn.ops.{name}" for name in ("layer_norm", "rms_norm", "triton.layer_norm"))


def _body(
    eps: float,
    dropout: float,
    prenorm: bool,
    wide: bool,
    rms: bool,
    centered: bool,
    mask_too: bool,
    dtype: torch.dtype | None,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    rows: Tensor | None,
    columns: Tensor | None,
) -> Any:
    """Return the norm of `x`, after dropout and scaling, plus `residual`; with `prenorm` the sum too."""
    total = x.float()
    if rows is not None:
        total = total * rows.float()[..., None]
    kept = torch.ones_like(total)
    if dropout:
        kept = functional.dropout(kept, dropout)
        total = total * kept
    if columns is not None:
        total = total * columns.float()
    stream = residual.dtype if residual is not None else torch.float32 if wide else x.dtype
    if residual is not None:
        total = total + residual.float()
    total = total.to(stream)
    out = normalize(total, x.shape[-1:], weight, bias, eps, rms=rms, centered=centered).to(dtype or x.dtype)
    results = (out, total) if prenorm else (out,)
    results = (*results, (kept > 0).to(torch.uint8)) if mask_too else results
    return results if len(results) > 1 else out


def _norm(
    name: str,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    dropout: float = 0.0,
    rows: Tensor | None = None,
    columns: Tensor | None = None,
    prenorm: bool = False,
    wide: bool = False,
    rms: bool = False,
    centered: bool = False,
    mask_too: bool = False,
    dtype: torch.dtype | None = None,
) -> Any:
    body = partial(_body, eps, dropout, prenorm, wide, rms, centered, mask_too, dtype)
    return differentiable(
        f"flash_attn::{name}_fwd",
        body,
        x,
        residual,
        weight,
        bias,
        rows,
        columns,
        backward=f"flash_attn::{name}_bwd",
        constants=int(mask_too),
        random=dropout > 0,
    )


# -- the CUDA kernels ----------------------------------------------------------------------------------


@PACKAGE.provides(_LAYER)
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """Layer norm over the last dimension."""
    return _norm("layer_norm", x, None, weight, bias, epsilon)  # type: ignore[no-any-return]


@PACKAGE.provides(_RMS)
def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMS norm over the last dimension."""
    return _norm("layer_norm", x, None, weight, None, epsilon, rms=True)  # type: ignore[no-any-return]


def _dropout_add_norm(
    rms: bool,
    x0: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    dropout_p: float,
    epsilon: float,
    rowscale: Tensor | None = None,
    layerscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    return_dropout_mask: bool = False,
) -> Any:
    return _norm(
        "dropout_add_layer_norm",
        x0,
        residual,
        weight,
        bias,
        epsilon,
        dropout_p,
        rowscale,
        layerscale,
        prenorm,
        residual_in_fp32,
        rms,
        mask_too=return_dropout_mask,
    )


dropout_add_layer_norm = partial(_dropout_add_norm, False)
dropout_add_rms_norm = partial(_dropout_add_norm, True)
PACKAGE.holds(_LAYER, dropout_add_layer_norm=dropout_add_layer_norm)
PACKAGE.holds(_RMS, dropout_add_rms_norm=dropout_add_rms_norm)


@PACKAGE.provides(_LAYER)
class DropoutAddLayerNorm(torch.nn.Module):
    """Dropout, residual and layer norm in one kernel."""

    bias: Any
    _rms = False

    def __init__(
        self,
        hidden_size: int,
        prenorm: bool = False,
        p: float = 0.0,
        eps: float = 1e-5,
        residual_in_fp32: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.prenorm, self.p, self.eps, self.residual_in_fp32 = prenorm, p, eps, residual_in_fp32
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        bias = None if self._rms else torch.nn.Parameter(torch.zeros_like(self.weight))
        self.register_parameter("bias", bias)

    def forward(self, x0: Tensor, residual: Tensor | None = None) -> Any:
        """Return the norm, and with `prenorm` the sum before it."""
        return _dropout_add_norm(
            self._rms,
            x0,
            residual,
            self.weight,
            self.bias,
            self.p if self.training else 0.0,
            self.eps,
            prenorm=self.prenorm,
            residual_in_fp32=self.residual_in_fp32,
        )


@PACKAGE.provides(_RMS)
class DropoutAddRMSNorm(DropoutAddLayerNorm):
    """Dropout, residual and RMS norm in one kernel."""

    _rms = True


@PACKAGE.provides(_RMS)
class RMSNorm(torch.nn.Module):
    """RMS norm over the last dimension."""

    def __init__(self, hidden_size: int, eps: float = 1e-5, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def forward(self, x: Tensor) -> Tensor:
        """`x` normalized."""
        return rms_norm(x, self.weight, self.eps)


# -- the Triton kernels --------------------------------------------------------------------------------


@PACKAGE.provides(_TRITON)
def layer_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    x1: Tensor | None = None,
    weight1: Tensor | None = None,
    bias1: Tensor | None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    zero_centered_weight: bool = False,
    is_rms_norm: bool = False,
    return_dropout_mask: bool = False,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
) -> Any:
    """Norm of `x` plus `residual`.

    Raises:
        NotImplementedError: a second input or weight, or results to write into.
    """
    if any(extra is not None for extra in (x1, weight1, bias1, out, residual_out)):
        raise NotImplementedError("the stand-in for flash_attn's Triton norms takes one input and one weight")
    return _norm(
        "layer_norm_triton",
        x,
        residual,
        weight,
        bias,
        eps,
        dropout_p,
        rowscale,
        None,
        prenorm,
        residual_in_fp32,
        is_rms_norm,
        zero_centered_weight,
        return_dropout_mask,
        out_dtype,
    )


@PACKAGE.provides(_TRITON)
def rms_norm_fn(x: Tensor, weight: Tensor, bias: Tensor | None, *args: Any, **kwargs: Any) -> Any:
    """`layer_norm_fn` that leaves the mean in."""
    return layer_norm_fn(x, weight, bias, *args, **{**kwargs, "is_rms_norm": True})


@PACKAGE.provides(_TRITON, name="RMSNorm")
class TritonRMSNorm(RMSNorm):
    """RMS norm that can add a residual first."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        dropout_p: float = 0.0,
        zero_centered_weight: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(hidden_size, eps, device, dtype)
        self.drop = torch.nn.Dropout(dropout_p) if dropout_p > 0 else None
        self.zero_centered_weight = zero_centered_weight
        if zero_centered_weight:
            torch.nn.init.zeros_(self.weight)

    def forward(
        self, x: Tensor, residual: Tensor | None = None, prenorm: bool = False, residual_in_fp32: bool = False
    ) -> Any:
        """Return the norm, and with `prenorm` the sum before it."""
        dropout = self.drop.p if self.drop is not None and self.training else 0.0
        return rms_norm_fn(
            x,
            self.weight,
            None,
            residual,
            eps=self.eps,
            dropout_p=dropout,
            prenorm=prenorm,
            residual_in_fp32=residual_in_fp32,
            zero_centered_weight=self.zero_centered_weight,
        )
