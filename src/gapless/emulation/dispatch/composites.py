"""Decompose composite operators into the operators that CUDA, not the CPU, calls.

C++ decides by a tensor's device, or by the available kernels, and would choose the CPU's here. Kernels
registered for the autograd key look the device up in the placement table: for device tensors they call what
CUDA calls, all else is decomposed as usual. They see calls from Python, from C++ (autocast, the plain formula
of attention, instance norm) and from wrapper subclasses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gapless import trees
from gapless.emulation import kernels
from gapless.emulation.support.layout import has_channels_last
from gapless.torch_internals import (
    DisableTorchFunction,
    DispatchKey,
    cudnn_enabled,
    has_any_kernel,
    has_kernel,
)

Tensor = torch.Tensor
Parts = Callable[..., Any]
Key: Any = DispatchKey
_aten: Any = torch.ops.aten

PARTS: dict[str, Parts] = {}
"""CUDA's decompositions by overload; one returns `NotImplemented` where CUDA and the CPU agree."""


def cuda_parts(*names: str) -> Callable[[Parts], Parts]:
    """Register the decorated function as CUDA's decomposition of these ATen overloads."""

    def register(function: Parts) -> Parts:
        for name in names:
            PARTS[name] = function
        return function

    return register


# -- CUDA's decompositions -----------------------------------------------------------------------------


@cuda_parts("_fused_rms_norm")
def _rms_norm(input: Tensor, normalized_shape: list[int], weight: Tensor | None, eps: float | None) -> Any:
    """Call the fused operator, which has its own backward; before torch 2.9 CUDA has no kernel for it."""
    if not kernels.fuses_rms_norm():
        return NotImplemented
    return _aten._fused_rms_norm.default._op_dk(Key.Autograd, input, normalized_shape, weight, eps)


@cuda_parts("dropout")
def _dropout(input: Tensor, p: float, train: bool) -> Any:
    """Call the fused kernel, which saves a mask of one byte per element."""
    if not (train and 0 < p < 1 and input.numel()):
        return NotImplemented
    return _aten.native_dropout(input, p, True)[0]


@cuda_parts("softmax.int")
def _softmax(self: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    """Call the kernel that reads float16 and writes float32 without a copy in between."""
    return _aten._softmax(self, dim, True) if _half_to_float(self, dtype) else NotImplemented


@cuda_parts("log_softmax.int")
def _log_softmax(self: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    return _aten._log_softmax(self, dim, True) if _half_to_float(self, dtype) else NotImplemented


def _half_to_float(tensor: Tensor, dtype: torch.dtype | None) -> bool:
    return tensor.dtype is torch.float16 and dtype is torch.float32


@cuda_parts("_batch_norm_impl_index")
def _batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_is_on: bool,
) -> Any:
    """Call cuDNN's operator if supported (`_select_batch_norm_backend` of `Normalization.cpp`)."""
    if not _cudnn_normalizes(input, weight, bias, running_mean, running_var, training, eps):
        return NotImplemented
    dense = input if has_channels_last(input) else input.contiguous()
    vectors = (
        vector if vector is None else vector.contiguous()
        for vector in (weight, bias, running_mean, running_var)
    )
    return (*_aten.cudnn_batch_norm(dense, *vectors, training, momentum, eps), 1)


_MAX_BATCH_TRAINING, _MAX_BATCH_EVALUATION = 880_801, 65_535
"""Largest batch that cuDNN normalizes, in training and in evaluation (`Normalization.cpp`)."""
_MAX_ELEMENTS = 2**31 - 1
"""cuDNN's 32-bit indices need tensors with fewer elements than this."""


def _cudnn_normalizes(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    eps: float,
) -> bool:
    if weight is None or bias is None or not cudnn_enabled():
        return False
    if (running_mean is None) != (running_var is None) or (running_mean is None and not training):
        return False
    dtypes = input.dtype, weight.dtype
    return (
        torch.bfloat16 not in dtypes
        and (input.dtype is not torch.float16 or weight.dtype is torch.float32)
        and input.dim() >= 3
        and len(input) <= (_MAX_BATCH_TRAINING if training else _MAX_BATCH_EVALUATION)
        and input.numel() < _MAX_ELEMENTS
        and eps >= 0
    )


@cuda_parts("grid_sampler")
def _grid_sampler(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Any:
    """Call cuDNN's operator for its only mode: bilinear, zero padding, aligned corners."""
    kind = interpolation_mode == 0 and padding_mode == 0 and align_corners
    fits = input.dim() == grid.dim() == 4 and input.dtype in (torch.float32, torch.float64)
    alike = fits and input.dtype == grid.dtype and len(input) == len(grid) and grid.shape[-1] == 2
    if not (kind and alike and cudnn_enabled() and input.shape[1] <= _MAX_SAMPLED_CHANNELS and input.numel()):
        return NotImplemented
    return _aten.cudnn_grid_sampler(input, grid)


_MAX_SAMPLED_CHANNELS = 1024
"""Most channels that cuDNN samples (`cond_cudnn_grid_sampler` of ``GridSamplerUtils.h``)."""


# -- on and off --------------------------------------------------------------------------------------------

_library: Any = None


def install(device_of: Callable[[Tensor], int]) -> None:
    """Decompose operators on device tensors as CUDA does, until `uninstall`.

    `device_of` returns a tensor's device (-1: the host).
    """
    global _library
    uninstall()
    _library = torch.library.Library("aten", "IMPL")
    for name in PARTS:
        if has_any_kernel(f"aten::{name}") and has_kernel(f"aten::{name}", "CompositeImplicitAutograd"):
            _library.impl(name, _decomposing_kernel(overload(name), device_of), "AutogradCPU")


def uninstall() -> None:
    """Restore ATen's kernels, if any were replaced."""
    global _library
    if _library is not None:
        _library._destroy()
        _library = None


def overload(name: str) -> Any:
    """Look up ATen's operator `name` or ``name.overload``."""
    packet, _, which = name.partition(".")
    return getattr(getattr(_aten, packet), which or "default")


def decompose(func: Any, args: Any, kwargs: dict[str, Any], device_of: Callable[[Tensor], int]) -> Any:
    """Run the composite operator `func` by the decomposition of the device its arguments are on."""
    parts = PARTS.get(func.name().removeprefix("aten::"))
    if parts is not None and any(device_of(tensor) >= 0 for tensor in trees.tensors(args)):
        out = parts(*args, **kwargs)
        if out is not NotImplemented:
            return out
    return func._op_dk(Key.CompositeImplicitAutograd, *args, **kwargs)


def _decomposing_kernel(func: Any, device_of: Callable[[Tensor], int]) -> Parts:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with DisableTorchFunction():  # function modes would not see this in C++
            return decompose(func, args, kwargs, device_of)

    return kernel
