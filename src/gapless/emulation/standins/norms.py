"""Layer norm and RMS norm as fused kernels compute them: in float32."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def normalize(
    x: Tensor,
    shape: tuple[int, ...],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    rms: bool = False,
    centered: bool = False,
) -> Tensor:
    """Return `x` normalized over its last dimensions, of `shape`; in float32.

    With `rms` the mean is not subtracted; with `centered` the weight is ``1 + weight``.
    """
    wide = x.double() if x.dtype is torch.float64 else x.float()
    weight = None if weight is None else weight.to(wide.dtype) + int(centered)
    bias = None if bias is None else bias.to(wide.dtype)
    if not rms:
        return functional.layer_norm(wide, shape, weight, bias, eps)
    dims = tuple(range(-len(shape), 0))
    out = wide * torch.rsqrt(wide.square().mean(dims, keepdim=True) + eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias
