"""Normalization kernels of `SyncBatchNorm` and of RMS normalization.

Formulas: Chan's parallel variance for the statistics, the usual gradient of batch normalization, both as in
`aten/src/ATen/native/cuda/Normalization.cuh`.
"""

from __future__ import annotations

import torch

from gapless.emulation.kernels import kernel

Tensor = torch.Tensor


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.half, torch.bfloat16) else tensor


def _all_but_channels(tensor: Tensor) -> list[int]:
    return [dimension for dimension in range(tensor.dim()) if dimension != 1]


def _across(values: Tensor, like: Tensor) -> Tensor:
    """Reshape one value per channel to broadcast against `like` of shape (N, C, *)."""
    return values.view(1, -1, *[1] * (like.dim() - 2))


@kernel("batch_norm_stats")
def _stats(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    wide = _wide(input)
    variance, mean = torch.var_mean(wide, _all_but_channels(wide), correction=0)
    return mean, torch.rsqrt(variance + eps)


@kernel("batch_norm_gather_stats", "batch_norm_gather_stats_with_counts")
def _gather_stats(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor | int,
) -> tuple[Tensor, Tensor]:
    """Combine the ranks' statistics: `mean` and `invstd` have shape (ranks, C), `counts` (ranks)."""
    weight = torch.as_tensor(counts, dtype=mean.dtype).expand(mean.shape[0]).view(-1, 1)
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


@kernel("batch_norm_elemt")
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


@kernel("batch_norm_backward_reduce")
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


@kernel("batch_norm_backward_elemt")
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


@kernel("_fused_rms_norm")
def _rms_norm(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    """Return the output and each row's reciprocal RMS; `eps` defaults to that of the accumulation dtype."""
    wide = _wide(input)
    last = list(range(input.dim() - len(normalized_shape), input.dim()))
    least = torch.finfo(wide.dtype).eps if eps is None else eps
    rstd = wide.square().mean(last, keepdim=True).add(least).rsqrt()
    out = wide * rstd
    if weight is not None:
        out = out * _wide(weight)
    return out.to(input.dtype).contiguous(), rstd.contiguous()


@kernel("_fused_rms_norm_backward")
def _rms_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: list[int],
    rstd: Tensor,
    weight: Tensor | None,
    output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None]:
    gradient, wide = _wide(grad_out), _wide(input)
    normal = wide * rstd
    kept = list(range(input.dim() - len(normalized_shape)))
    grad_weight = (gradient * normal).sum(kept) if kept else gradient * normal
    if weight is not None:
        gradient = gradient * _wide(weight)
    last = list(range(len(kept), input.dim()))
    grad_input = (gradient - normal * (gradient * normal).mean(last, keepdim=True)) * rstd
    return (
        grad_input.to(input.dtype) if output_mask[0] else None,
        grad_weight.to(weight.dtype) if output_mask[1] and weight is not None else None,
    )
