"""Composite operators that CUDA takes apart into other operators than the CPU does.

C++ decides by the device of a tensor, or by which kernels there are, and finds the CPU here. Kernels of the
autograd key stand before ATen's own and ask the placement table instead: for tensors on the device they call
what CUDA calls, all else is taken apart as ever. Python's calls, C++'s own (autocast, the plain formula of
attention, instance norm) and those of wrapper subclasses come here alike.
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
"""By overload what CUDA makes of a call; `NotImplemented` where that is what the CPU makes of it."""


def cuda(*names: str) -> Callable[[Parts], Parts]:
    """Register what CUDA makes of these overloads of ATen, given their arguments."""

    def register(function: Parts) -> Parts:
        for name in names:
            PARTS[name] = function
        return function

    return register


# -- what CUDA makes of them -----------------------------------------------------------------------------


@cuda("_fused_rms_norm")
def _rms_norm(input: Tensor, normalized_shape: list[int], weight: Tensor | None, eps: float | None) -> Any:
    """One operator with a formula of its own for the gradient; before torch 2.9 CUDA has no kernel for it."""
    if not kernels.fuses_rms_norm():
        return NotImplemented
    return _aten._fused_rms_norm.default._op_dk(Key.Autograd, input, normalized_shape, weight, eps)


@cuda("dropout")
def _dropout(input: Tensor, p: float, train: bool) -> Any:
    """One kernel, which keeps a mask of a byte for each number."""
    if not (train and 0 < p < 1 and input.numel()):
        return NotImplemented
    return _aten.native_dropout(input, p, True)[0]


@cuda("softmax.int")
def _softmax(self: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    """The kernel reads float16 and writes float32; there is no copy between."""
    return _aten._softmax(self, dim, True) if _half_to_float(self, dtype) else NotImplemented


@cuda("log_softmax.int")
def _log_softmax(self: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    return _aten._log_softmax(self, dim, True) if _half_to_float(self, dtype) else NotImplemented


def _half_to_float(given: Tensor, dtype: torch.dtype | None) -> bool:
    return given.dtype is torch.float16 and dtype is torch.float32


@cuda("_batch_norm_impl_index")
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
    """cuDNN's operator where it takes the arguments (`_select_batch_norm_backend` of `Normalization.cpp`)."""
    if not _cudnn_normalizes(input, weight, bias, running_mean, running_var, training, eps):
        return NotImplemented
    laid = input if has_channels_last(input) else input.contiguous()
    vectors = (one if one is None else one.contiguous() for one in (weight, bias, running_mean, running_var))
    return (*_aten.cudnn_batch_norm(laid, *vectors, training, momentum, eps), 1)


_MOST_TRAINED, _MOST_EVALUATED = 880_801, 65_535
"""Samples of a batch up to which cuDNN normalizes it, in training and in evaluation."""
_MOST_NUMBERS = 2**31 - 1
"""Numbers of a tensor that cuDNN's indices of 32 bits reach, and one more."""


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
        and len(input) <= (_MOST_TRAINED if training else _MOST_EVALUATED)
        and input.numel() < _MOST_NUMBERS
        and eps >= 0
    )


@cuda("grid_sampler")
def _grid_sampler(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Any:
    """cuDNN's operator for its one kind: bilinear, zeros outside, corners aligned."""
    kind = interpolation_mode == 0 and padding_mode == 0 and align_corners
    fits = input.dim() == grid.dim() == 4 and input.dtype in (torch.float32, torch.float64)
    alike = fits and input.dtype == grid.dtype and len(input) == len(grid) and grid.shape[-1] == 2
    if not (kind and alike and cudnn_enabled() and input.shape[1] <= _MOST_CHANNELS and input.numel()):
        return NotImplemented
    return _aten.cudnn_grid_sampler(input, grid)


_MOST_CHANNELS = 1024
"""Channels of an image that cuDNN samples (`cond_cudnn_grid_sampler` of ``GridSamplerUtils.h``)."""


# -- on and off --------------------------------------------------------------------------------------------

_library: Any = None


def install(device_of: Callable[[Tensor], int]) -> None:
    """Take operators on tensors of a device apart as CUDA does, until `uninstall`.

    `device_of` says on which device a tensor is (-1: on the host).
    """
    global _library
    uninstall()
    _library = torch.library.Library("aten", "IMPL")
    for name in PARTS:
        if has_any_kernel(f"aten::{name}") and has_kernel(f"aten::{name}", "CompositeImplicitAutograd"):
            _library.impl(name, _asking(overload(name), device_of), "AutogradCPU")


def uninstall() -> None:
    """Give ATen's kernels back. Does nothing where nothing is installed."""
    global _library
    if _library is not None:
        _library._destroy()
        _library = None


def overload(name: str) -> Any:
    """The operator of ATen called `name` or ``name.overload``."""
    packet, _, which = name.partition(".")
    return getattr(getattr(_aten, packet), which or "default")


def taken_apart(func: Any, args: Any, kwargs: dict[str, Any], device_of: Callable[[Tensor], int]) -> Any:
    """What the composite operator `func` gives, taken apart as where its arguments are."""
    parts = PARTS.get(func.name().removeprefix("aten::"))
    if parts is not None and any(device_of(one) >= 0 for one in trees.tensors(args)):
        out = parts(*args, **kwargs)
        if out is not NotImplemented:
            return out
    return func._op_dk(Key.CompositeImplicitAutograd, *args, **kwargs)


def _asking(func: Any, device_of: Callable[[Tensor], int]) -> Parts:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with DisableTorchFunction():  # C++ would show function modes nothing of this
            return taken_apart(func, args, kwargs, device_of)

    return kernel
