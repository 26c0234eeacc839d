"""Operators whose CUDA kernel saves other tensors for backward than the CPU's, or accepts other dtypes.

On CUDA, statistics of half-precision inputs are float32, and what backward can recompute is not saved. Inputs
of mixed dtypes raise what CUDA's kernels raise.
"""

from __future__ import annotations

from typing import Any

import torch

from gapless.emulation.kernels import kernel

Tensor = torch.Tensor
_aten: Any = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)
_NAMES = {
    torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float", torch.float64: "Double",
}  # fmt: skip
_MODE_MAX = 2
"""The `mode` of an embedding bag for the maximum."""


def _wide(value: Any) -> Any:
    """Convert a half-precision tensor to float32; return anything else unchanged."""
    return value.float() if isinstance(value, Tensor) and value.dtype in _HALVES else value


def _cast_like(results: Any, *models: Tensor | None) -> tuple[Any, ...]:
    """Cast each of `results` to the dtype of its counterpart in `models`."""
    pairs = zip(results, models, strict=True)
    return tuple(
        result if result is None or model is None else result.to(model.dtype) for result, model in pairs
    )


def _require_same_dtype(input: Tensor, *parameters: Tensor | None) -> None:
    """Raise CUDA's error if a parameter has another dtype than `input`."""
    for parameter in parameters:
        if parameter is not None and parameter.dtype != input.dtype:
            wanted, has = (_NAMES.get(dtype, str(dtype)) for dtype in (input.dtype, parameter.dtype))
            raise RuntimeError(f"expected scalar type {wanted} but found {has}")


# -- softmax ------------------------------------------------------------------------------------------


@kernel("_softmax")
def _softmax(self: Tensor, dim: int, half_to_float: bool) -> Any:
    return _aten._softmax(self.float() if half_to_float else self, dim, False)


@kernel("_log_softmax")
def _log_softmax(self: Tensor, dim: int, half_to_float: bool) -> Any:
    return _aten._log_softmax(self.float() if half_to_float else self, dim, False)


@kernel("_softmax_backward_data")
def _softmax_backward(grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Any:
    gradient = _aten._softmax_backward_data(grad_output, output, dim, grad_output.dtype)
    return gradient.to(input_dtype)


@kernel("_log_softmax_backward_data")
def _log_softmax_backward(grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Any:
    gradient = _aten._log_softmax_backward_data(grad_output, output, dim, grad_output.dtype)
    return gradient.to(input_dtype)


# -- norms --------------------------------------------------------------------------------------------


@kernel("native_layer_norm")
def _layer_norm(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Any:
    _require_same_dtype(input, weight, bias)
    out, mean, rstd = _aten.native_layer_norm(_wide(input), normalized_shape, _wide(weight), _wide(bias), eps)
    return out.to(input.dtype), mean, rstd


@kernel("native_layer_norm_backward")
def _layer_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: list[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: list[bool],
) -> Any:
    gradients = _aten.native_layer_norm_backward(
        _wide(grad_out), _wide(input), normalized_shape, mean, rstd, _wide(weight), _wide(bias), output_mask
    )
    return _cast_like(gradients, input, weight, bias)


@kernel("native_group_norm")
def _group_norm(input: Tensor, weight: Tensor | None, bias: Tensor | None, *rest: Any) -> Any:
    _require_same_dtype(input, weight, bias)
    return _aten.native_group_norm(input, weight, bias, *rest)


@kernel("native_batch_norm", "_native_batch_norm_legit")
def _batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Normalize; in evaluation the saved statistics are the running ones it normalizes with."""
    running = running_mean, running_var
    wide = [_wide(statistic) for statistic in running]
    out, *kept = _aten.native_batch_norm(
        _wide(input), _wide(weight), _wide(bias), *wide, training, momentum, eps
    )
    for statistic, changed in zip(running, wide, strict=True):
        if training and statistic is not None and changed is not statistic:
            statistic.copy_(changed)
    if not training:
        kept = [wide[0].clone(), (wide[1] + eps).rsqrt()]
    return out.to(input.dtype), *kept


@kernel("_native_batch_norm_legit.no_stats")
def _batch_norm_alone(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> Any:
    return _batch_norm(input, weight, bias, None, None, training, momentum, eps)


@kernel("_batch_norm_with_update")
def _batch_norm_with_update(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> Any:
    results = _batch_norm(input, weight, bias, running_mean, running_var, True, momentum, eps)
    return *results, input.new_empty(0, dtype=torch.uint8)


@kernel("native_batch_norm_backward", "batch_norm_backward")
def _batch_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    training: bool,
    eps: float,
    output_mask: list[bool],
    reserve: Tensor | None = None,
) -> Any:
    tensors = grad_out, input, weight, running_mean, running_var, save_mean, save_invstd
    gradients = _aten.native_batch_norm_backward(*map(_wide, tensors), training, eps, output_mask)
    return _cast_like(gradients, input, weight, weight)


# -- log-sigmoid and embedding bags -------------------------------------------------------------------


@kernel("log_sigmoid_forward")
def _log_sigmoid(self: Tensor) -> tuple[Tensor, Tensor]:
    """Return an empty buffer: backward recomputes from `self`."""
    return _aten.log_sigmoid_forward(self)[0], self.new_empty(0)


@kernel("log_sigmoid_backward")
def _log_sigmoid_backward(grad_output: Tensor, self: Tensor, buffer: Tensor) -> Any:
    return _aten.log_sigmoid_backward(grad_output, self, _aten.log_sigmoid_forward(self)[1])


@kernel("_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return also each index's bag and, for mode "max" only, the positions of the maxima."""
    out, _, sizes, largest = _aten._embedding_bag(
        weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset,
        padding_idx,
    )  # fmt: skip
    begins = offsets[:-1] if include_last_offset else offsets
    places = torch.ones_like(indices).cumsum(0).sub_(1)
    bags = torch.bucketize(places.to(begins.dtype), begins, right=True).sub_(1).to(indices.dtype)
    return out, bags, sizes, largest if mode == _MODE_MAX else indices.new_empty(0)
