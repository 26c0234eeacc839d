"""Kernels of `SyncBatchNorm`, which ATen has for CUDA alone, as compositions on CPU values.

Formulas: Chan's parallel variance for the statistics, the usual gradient of batch normalization, both as in
`aten/src/ATen/native/cuda/Normalization.cuh`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gapless.emulate.operators import OperatorMode, handles

Tensor = torch.Tensor


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.half, torch.bfloat16) else tensor


def _all_but_channels(tensor: Tensor) -> list[int]:
    return [dimension for dimension in range(tensor.dim()) if dimension != 1]


def _across(values: Tensor, like: Tensor) -> Tensor:
    """One value per channel, shaped to meet `like` of shape (N, C, *)."""
    return values.view(1, -1, *[1] * (like.dim() - 2))


def _stats(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    wide = _wide(input)
    variance, mean = torch.var_mean(wide, _all_but_channels(wide), correction=0)
    return mean, torch.rsqrt(variance + eps)


def _gather_stats_with_counts(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Statistics of all ranks from those of each: `mean`, `invstd` of shape (ranks, C), `counts` (ranks)."""
    weight = counts.to(mean.dtype).view(-1, 1)
    total = weight.sum()
    centre = (mean * weight).sum(0) / total
    spread = ((1 / (invstd * invstd) - eps) * weight).sum(0) + ((mean - centre) ** 2 * weight).sum(0)
    variance = spread / total
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(centre.to(running_mean.dtype), alpha=momentum)
    if running_var is not None:
        unbiased = spread / (total - 1)
        running_var.mul_(1 - momentum).add_(unbiased.to(running_var.dtype), alpha=momentum)
    return centre, torch.rsqrt(variance + eps)


def _gather_stats(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    count: int,
) -> tuple[Tensor, Tensor]:
    counts = torch.full((mean.shape[0],), float(count), dtype=mean.dtype)
    return _gather_stats_with_counts(input, mean, invstd, running_mean, running_var, momentum, eps, counts)


def _elemt(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Tensor:
    wide = _wide(input)
    out = (wide - _across(mean, wide)) * _across(invstd, wide)
    if weight is not None:
        out = out * _across(weight, wide)
    if bias is not None:
        out = out + _across(bias, wide)
    return out.to(input.dtype)


def _backward_reduce(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    gradient, wide = _wide(grad_out), _wide(input)
    kept = _all_but_channels(wide)
    sum_dy = gradient.sum(kept)
    sum_dy_xmu = (gradient * (wide - _across(mean, wide))).sum(kept)
    dtype = weight.dtype if weight is not None else grad_out.dtype
    grad_weight = (sum_dy_xmu * invstd).to(dtype) if weight_g else None
    grad_bias = sum_dy.to(dtype) if bias_g else None
    return sum_dy, sum_dy_xmu, grad_weight, grad_bias


def _backward_elemt(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    gradient, wide = _wide(grad_out), _wide(input)
    total = count.sum().to(wide.dtype)
    centred = wide - _across(mean, wide)
    share = _across(sum_dy_xmu * invstd * invstd / total, wide)
    out = (gradient - _across(sum_dy / total, wide) - centred * share) * _across(invstd, wide)
    if weight is not None:
        out = out * _across(weight, wide)
    return out.to(input.dtype)


_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::batch_norm_stats": _stats,
    "aten::batch_norm_gather_stats": _gather_stats,
    "aten::batch_norm_gather_stats_with_counts": _gather_stats_with_counts,
    "aten::batch_norm_elemt": _elemt,
    "aten::batch_norm_backward_reduce": _backward_reduce,
    "aten::batch_norm_backward_elemt": _backward_elemt,
}


@handles(*_KERNELS)
def _normalize(mode: OperatorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    index = mode.core.device_of(args[0])
    if index < 0:
        return func(*args, **kwargs)  # the CPU has no such kernel: ATen's own error
    out = _KERNELS[func._schema.name](*args, **kwargs)
    mode.put(out, index)
    return out
