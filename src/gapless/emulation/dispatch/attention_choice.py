"""Dispatch `scaled_dot_product_attention` as CUDA does: choose the kernel and run it under its own name.

C++ chooses by the storages' device, which is the CPU here. CUDA's own operators, which are called, are in
`kernels/attention_kernels.py`, so that selective checkpointing, profilers and the recording of memory see
them. Rules: `aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`.
"""

from __future__ import annotations

import math
import os
from typing import Any, NamedTuple

import torch

from gapless.emulation.core.core import EmulationCore
from gapless.emulation.core.transfers import unpacks_itself
from gapless.emulation.dispatch.functions import FunctionMode, handles
from gapless.emulation.support.patches import Patches
from gapless.torch_internals import (
    VERSION,
    C,
    functorch,
    fused_sdp_choice,
    no_torch_function,
    sdp_priority_order,
)

Tensor = torch.Tensor
_aten: Any = torch.ops.aten
_MATH, _FLASH, _EFFICIENT, _CUDNN = 0, 1, 2, 3
_HALVES = (torch.float16, torch.bfloat16)
_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
_CUDNN_FIRST = (2, 10)
"""The first torch version that prefers cuDNN on Hopper and Blackwell."""


class AttentionArguments(NamedTuple):
    """Arguments of one attention call, with their defaults."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value

    @property
    def needs_gradient(self) -> bool:
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in self.tensors)


def install(core: EmulationCore, patches: Patches) -> None:
    """Make ``torch._C._can_use_*_attention`` answer for the emulated device, until `patches` are undone."""
    for name, able in (
        ("flash", _can_use_flash),
        ("mem_efficient", _can_use_efficient),
        ("cudnn", _can_use_cudnn),
    ):
        if hasattr(C, f"_can_use_{name}_attention"):
            patches.set(C, f"_can_use_{name}_attention", _can_use_answer(core, able))


def _can_use_answer(core: EmulationCore, able: Any) -> Any:
    def can_use(params: Any, debug: bool = False) -> bool:
        arguments = AttentionArguments(
            params.query, params.key, params.value, params.attn_mask, params.dropout, params.is_causal, None,
            bool(getattr(params, "enable_gqa", False)),
        )  # fmt: skip
        return (
            core.device_of(arguments.query) >= 0
            and _meets_common_rules(arguments)
            and bool(able(arguments, core.gpu.capability))
        )

    return can_use


@handles(torch.nn.functional.scaled_dot_product_attention)
def _attention(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    arguments = _cast(AttentionArguments(**{**dict(zip(_NAMES, args, strict=False)), **kwargs}))
    if not any(map(mode.on_device, arguments.tensors)) or not _is_plain_call(arguments):
        return func(*args, **kwargs)
    query, key, value = (tensor.device for tensor in arguments.tensors)
    if not query.type == key.type == value.type:
        raise RuntimeError(
            "Expected query, key, and value to have the same device type, but got query.device: "
            f"{query} key.device: {key} and value.device: {value} instead."
        )
    chosen = choose_kernel(arguments, mode.core.gpu.capability)
    if chosen == _MATH:
        mask, dropout, causal = arguments.attn_mask, arguments.dropout_p, arguments.is_causal
        return _aten._scaled_dot_product_attention_math(
            *arguments.tensors, mask, dropout, causal, scale=arguments.scale, **_gqa_option(arguments)
        )[0]
    return _RUN[chosen](arguments)


@handles(fused_sdp_choice)
def _fused_choice(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    arguments = AttentionArguments(**{**dict(zip(_NAMES, args, strict=False)), **kwargs})
    if not mode.on_device(arguments.query) or not _is_plain_call(arguments):
        return func(*args, **kwargs)
    return choose_kernel(arguments, mode.core.gpu.capability)


def _is_plain_call(arguments: AttentionArguments) -> bool:
    """Whether C++ would choose a kernel: strided tensors, no overriding subclass, no functorch transform."""
    for tensor in (*arguments.tensors, arguments.attn_mask):
        kind: Any = type(tensor)
        if tensor is None or kind in (Tensor, torch.nn.Parameter):
            continue
        if kind.__torch_function__ is not no_torch_function or not unpacks_itself(kind):
            return False
    if functorch.maybe_current_level() is not None:
        return False
    return all(tensor.layout is torch.strided and not tensor.is_nested for tensor in arguments.tensors)


def _cast(arguments: AttentionArguments) -> AttentionArguments:
    """Cast the arguments as autocast does."""
    if not isinstance(arguments.query, Tensor) or not torch.is_autocast_enabled("cuda"):
        return arguments
    dtype = torch.get_autocast_dtype("cuda")

    def cast(value: Any) -> Any:
        eligible = (
            isinstance(value, Tensor) and value.is_floating_point() and value.dtype is not torch.float64
        )
        return value.to(dtype) if eligible and value.is_cuda else value

    query, key, value, mask = map(cast, (*arguments.tensors, arguments.attn_mask))
    return arguments._replace(query=query, key=key, value=value, attn_mask=mask)


# -- the choice --------------------------------------------------------------------------------------


def choose_kernel(arguments: AttentionArguments, capability: tuple[int, int]) -> int:
    """Choose the kernel as a GPU of this compute capability does.

    Raises:
        RuntimeError: every kernel that supports the arguments is switched off.
    """
    regular = _meets_common_rules(arguments)
    for kernel in _order(capability):
        if kernel == _MATH:
            if torch.backends.cuda.math_sdp_enabled():
                return _MATH
        elif regular and kernel in _CAN_USE and _CAN_USE[kernel](arguments, capability):
            return int(kernel)
    raise RuntimeError("No available kernel. Aborting execution.")


def _order(capability: tuple[int, int]) -> list[int]:
    """Return the kernels in order of preference."""
    """Return the kernels in order of preference."""
    default = [_FLASH, _EFFICIENT, _MATH, _CUDNN]
    order = default if sdp_priority_order is None else [int(kernel) for kernel in sdp_priority_order()]
    if order[: len(default)] == default and _prefers_cudnn(capability):
        return [_CUDNN, _FLASH, _EFFICIENT, _MATH]
    return order


def _prefers_cudnn(capability: tuple[int, int]) -> bool:
    if os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") == "1" or capability[0] not in (9, 10):
        return False
    return VERSION >= _CUDNN_FIRST


def _meets_common_rules(arguments: AttentionArguments) -> bool:
    """Whether the arguments meet what every kernel but the plain formula requires."""
    query, key, value = arguments.tensors
    if not query.dim() == key.dim() == value.dim() == 4 or not query.dtype == key.dtype == value.dtype:
        return False
    if not query.shape[0] == key.shape[0] == value.shape[0] or 0 in (*query.shape, *key.shape, *value.shape):
        return False
    heads = query.shape[1], key.shape[1], value.shape[1]
    alike = heads[0] == heads[1] == heads[2]
    return alike or (arguments.enable_gqa and heads[1] == heads[2] and heads[0] % heads[1] == 0)


def _can_use_flash(arguments: AttentionArguments, capability: tuple[int, int]) -> bool:
    query, key, value = arguments.tensors
    width = query.shape[-1]
    ampere_or_ada = (8, 6) <= capability <= (8, 9) or capability >= (12, 0)
    narrow = width <= 192 or (width > 224 and arguments.dropout_p == 0)
    return (
        torch.backends.cuda.flash_sdp_enabled()
        and capability >= (8, 0)
        and query.dtype in _HALVES
        and arguments.attn_mask is None
        and width == key.shape[-1] == value.shape[-1]
        and width <= 256
        and (narrow or not arguments.needs_gradient or not ampere_or_ada)
        and (not arguments.is_causal or query.shape[2] == key.shape[2])
        and all(tensor.stride(-1) == 1 or tensor.shape[-1] == 1 for tensor in arguments.tensors)
    )


def _can_use_efficient(arguments: AttentionArguments, capability: tuple[int, int]) -> bool:
    query, key, value = arguments.tensors
    half = query.dtype in _HALVES
    aligned = 8 if half and capability >= (7, 0) else 4 if capability >= (8, 0) else 1
    has_common_dtype = query.dtype is torch.float32 or query.dtype is torch.float16
    return (
        torch.backends.cuda.mem_efficient_sdp_enabled()
        and (has_common_dtype or (query.dtype is torch.bfloat16 and capability >= (8, 0)))
        and query.shape[-1] == key.shape[-1]
        and query.shape[-1] % aligned == value.shape[-1] % aligned == 0
        and all(
            tensor.stride(-1) == 1
            for tensor in (*arguments.tensors, arguments.attn_mask)
            if tensor is not None
        )
    )


def _can_use_cudnn(arguments: AttentionArguments, capability: tuple[int, int]) -> bool:
    query, key, value = arguments.tensors
    width, out = query.shape[-1], value.shape[-1]
    large = capability == (9, 0) or capability[0] == 10
    sized = (width <= 128 and out <= 128) or (large and (width, out) in ((192, 128), (256, 256)))
    mask = arguments.attn_mask
    return (
        torch.backends.cuda.cudnn_sdp_enabled()
        and capability >= (8, 0)
        and query.dtype in _HALVES
        and (mask is None or not mask.requires_grad)
        and width == key.shape[-1]
        and width % 8 == out % 8 == 0
        and sized
        and key.shape[2] > 1
        and (arguments.dropout_p == 0 or query.shape[2] > 1)
        and (arguments.dropout_p * 16).is_integer()
        and not (
            torch.are_deterministic_algorithms_enabled()
            and not torch.is_deterministic_algorithms_warn_only_enabled()
        )
        and all(tensor.stride(-1) == 1 or tensor.shape[-1] == 1 for tensor in arguments.tensors)
    )


_CAN_USE = {_FLASH: _can_use_flash, _EFFICIENT: _can_use_efficient, _CUDNN: _can_use_cudnn}


# -- the operators -------------------------------------------------------------------------------------


def _flash(arguments: AttentionArguments) -> Tensor:
    width = arguments.query.shape[-1]
    tensors = arguments.tensors
    if width % 8:
        tensors = tuple(torch.nn.functional.pad(tensor, (0, 8 - width % 8)) for tensor in tensors)  # type: ignore[assignment]
    out = _aten._scaled_dot_product_flash_attention(
        *tensors, arguments.dropout_p, arguments.is_causal, False, scale=_scale(arguments)
    )[0]
    return out[..., :width] if width % 8 else out


def _efficient(arguments: AttentionArguments) -> Any:
    query, key, value = arguments.tensors
    if key.shape[1] != query.shape[1]:
        times = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
    return _aten._scaled_dot_product_efficient_attention(
        query,
        key,
        value,
        _bias(arguments),
        arguments.needs_gradient,
        arguments.dropout_p,
        arguments.is_causal,
        scale=arguments.scale,
    )[0]


def _cudnn(arguments: AttentionArguments) -> Any:
    return _aten._scaled_dot_product_cudnn_attention(
        *arguments.tensors,
        _bias(arguments),
        arguments.needs_gradient,
        arguments.dropout_p,
        arguments.is_causal,
        False,
        scale=arguments.scale,
    )[0]


_RUN = {_FLASH: _flash, _EFFICIENT: _efficient, _CUDNN: _cudnn}


def _scale(arguments: AttentionArguments) -> float:
    return 1 / math.sqrt(arguments.query.shape[-1]) if arguments.scale is None else arguments.scale


def _bias(arguments: AttentionArguments) -> Tensor | None:
    """The mask as an additive bias, expanded to every batch and head."""
    mask, query = arguments.attn_mask, arguments.query
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask.logical_not(), -math.inf)
    return mask.expand(*query.shape[:3], arguments.key.shape[2])


def _gqa_option(arguments: AttentionArguments) -> dict[str, bool]:
    """The keyword `enable_gqa` if set; not every torch version accepts it."""
    return {"enable_gqa": True} if arguments.enable_gqa else {}
