"""`scaled_dot_product_attention` as CUDA dispatches it: which kernel it takes, and under which name it runs.

C++ chooses by the device of the storages, which is the CPU's here. The operators behind it are CUDA's own
(`kernels/attention.py`), so that whoever looks on sees those: selective checkpointing by its list of
operators, profilers, a recording of memory. Rules: `aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`.
"""

from __future__ import annotations

import math
import os
from typing import Any, NamedTuple

import torch

from gapless.emulation.core.core import Core
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
"""The torch since which cuDNN comes first on Hopper and Blackwell."""


class Asked(NamedTuple):
    """One call, with what it leaves out."""

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
    def learns(self) -> bool:
        return torch.is_grad_enabled() and any(one.requires_grad for one in self.tensors)


def install(core: Core, patches: Patches) -> None:
    """Answer which kernel can be used, until `patches` are undone."""
    for name, able in (("flash", _flash_able), ("mem_efficient", _efficient_able), ("cudnn", _cudnn_able)):
        if hasattr(C, f"_can_use_{name}_attention"):
            patches.set(C, f"_can_use_{name}_attention", _answer(core, able))


def _answer(core: Core, able: Any) -> Any:
    def can_use(params: Any, debug: bool = False) -> bool:
        asked = Asked(
            params.query, params.key, params.value, params.attn_mask, params.dropout, params.is_causal, None,
            bool(getattr(params, "enable_gqa", False)),
        )  # fmt: skip
        return core.device_of(asked.query) >= 0 and _regular(asked) and bool(able(asked, core.gpu.capability))

    return can_use


@handles(torch.nn.functional.scaled_dot_product_attention)
def _attention(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    asked = _cast(Asked(**{**dict(zip(_NAMES, args, strict=False)), **kwargs}))
    if not any(map(mode.on_device, asked.tensors)) or not _known(asked):
        return func(*args, **kwargs)
    query, key, value = (one.device for one in asked.tensors)
    if not query.type == key.type == value.type:
        raise RuntimeError(
            "Expected query, key, and value to have the same device type, but got query.device: "
            f"{query} key.device: {key} and value.device: {value} instead."
        )
    chosen = choice(asked, mode.core.gpu.capability)
    if chosen == _MATH:
        mask, dropout, causal = asked.attn_mask, asked.dropout_p, asked.is_causal
        return _aten._scaled_dot_product_attention_math(
            *asked.tensors, mask, dropout, causal, scale=asked.scale, **_grouped(asked)
        )[0]
    return _RUN[chosen](asked)


@handles(fused_sdp_choice)
def _fused_choice(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    asked = Asked(**{**dict(zip(_NAMES, args, strict=False)), **kwargs})
    if not mode.on_device(asked.query) or not _known(asked):
        return func(*args, **kwargs)
    return choice(asked, mode.core.gpu.capability)


def _known(asked: Asked) -> bool:
    """Whether the tensors are such as C++ would choose for: neither of a class that answers for itself, nor
    in the middle of a transformation.
    """
    for one in (*asked.tensors, asked.attn_mask):
        kind: Any = type(one)
        if one is None or kind in (Tensor, torch.nn.Parameter):
            continue
        if kind.__torch_function__ is not no_torch_function or not unpacks_itself(kind):
            return False
    if functorch.maybe_current_level() is not None:
        return False
    return all(one.layout is torch.strided and not one.is_nested for one in asked.tensors)


def _cast(asked: Asked) -> Asked:
    """What autocast makes of the arguments."""
    if not isinstance(asked.query, Tensor) or not torch.is_autocast_enabled("cuda"):
        return asked
    dtype = torch.get_autocast_dtype("cuda")

    def cast(one: Any) -> Any:
        eligible = isinstance(one, Tensor) and one.is_floating_point() and one.dtype is not torch.float64
        return one.to(dtype) if eligible and one.is_cuda else one

    query, key, value, mask = map(cast, (*asked.tensors, asked.attn_mask))
    return asked._replace(query=query, key=key, value=value, attn_mask=mask)


# -- the choice --------------------------------------------------------------------------------------


def choice(asked: Asked, capability: tuple[int, int]) -> int:
    """The kernel that a GPU of that compute capability takes.

    Raises:
        RuntimeError: all that could do it are switched off.
    """
    regular = _regular(asked)
    for one in _order(capability):
        if one == _MATH:
            if torch.backends.cuda.math_sdp_enabled():
                return _MATH
        elif regular and one in _ABLE and _ABLE[one](asked, capability):
            return int(one)
    raise RuntimeError("No available kernel. Aborting execution.")


def _order(capability: tuple[int, int]) -> list[int]:
    default = [_FLASH, _EFFICIENT, _MATH, _CUDNN]
    order = default if sdp_priority_order is None else [int(one) for one in sdp_priority_order()]
    if order[: len(default)] == default and _prefers_cudnn(capability):
        return [_CUDNN, _FLASH, _EFFICIENT, _MATH]
    return order


def _prefers_cudnn(capability: tuple[int, int]) -> bool:
    if os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") == "1" or capability[0] not in (9, 10):
        return False
    return VERSION >= _CUDNN_FIRST


def _regular(asked: Asked) -> bool:
    """What all kernels but the plain formula want."""
    query, key, value = asked.tensors
    if not query.dim() == key.dim() == value.dim() == 4 or not query.dtype == key.dtype == value.dtype:
        return False
    if not query.shape[0] == key.shape[0] == value.shape[0] or 0 in (*query.shape, *key.shape, *value.shape):
        return False
    heads = query.shape[1], key.shape[1], value.shape[1]
    alike = heads[0] == heads[1] == heads[2]
    return alike or (asked.enable_gqa and heads[1] == heads[2] and heads[0] % heads[1] == 0)


def _flash_able(asked: Asked, capability: tuple[int, int]) -> bool:
    query, key, value = asked.tensors
    width = query.shape[-1]
    ampere_or_ada = (8, 6) <= capability <= (8, 9) or capability >= (12, 0)
    narrow = width <= 192 or (width > 224 and asked.dropout_p == 0)
    return (
        torch.backends.cuda.flash_sdp_enabled()
        and capability >= (8, 0)
        and query.dtype in _HALVES
        and asked.attn_mask is None
        and width == key.shape[-1] == value.shape[-1]
        and width <= 256
        and (narrow or not asked.learns or not ampere_or_ada)
        and (not asked.is_causal or query.shape[2] == key.shape[2])
        and all(one.stride(-1) == 1 or one.shape[-1] == 1 for one in asked.tensors)
    )


def _efficient_able(asked: Asked, capability: tuple[int, int]) -> bool:
    query, key, value = asked.tensors
    half = query.dtype in _HALVES
    aligned = 8 if half and capability >= (7, 0) else 4 if capability >= (8, 0) else 1
    known = query.dtype is torch.float32 or query.dtype is torch.float16
    return (
        torch.backends.cuda.mem_efficient_sdp_enabled()
        and (known or (query.dtype is torch.bfloat16 and capability >= (8, 0)))
        and query.shape[-1] == key.shape[-1]
        and query.shape[-1] % aligned == value.shape[-1] % aligned == 0
        and all(one.stride(-1) == 1 for one in (*asked.tensors, asked.attn_mask) if one is not None)
    )


def _cudnn_able(asked: Asked, capability: tuple[int, int]) -> bool:
    query, key, value = asked.tensors
    width, out = query.shape[-1], value.shape[-1]
    large = capability == (9, 0) or capability[0] == 10
    sized = (width <= 128 and out <= 128) or (large and (width, out) in ((192, 128), (256, 256)))
    mask = asked.attn_mask
    return (
        torch.backends.cuda.cudnn_sdp_enabled()
        and capability >= (8, 0)
        and query.dtype in _HALVES
        and (mask is None or not mask.requires_grad)
        and width == key.shape[-1]
        and width % 8 == out % 8 == 0
        and sized
        and key.shape[2] > 1
        and (asked.dropout_p == 0 or query.shape[2] > 1)
        and (asked.dropout_p * 16).is_integer()
        and not (
            torch.are_deterministic_algorithms_enabled()
            and not torch.is_deterministic_algorithms_warn_only_enabled()
        )
        and all(one.stride(-1) == 1 or one.shape[-1] == 1 for one in asked.tensors)
    )


_ABLE = {_FLASH: _flash_able, _EFFICIENT: _efficient_able, _CUDNN: _cudnn_able}


# -- the operators -------------------------------------------------------------------------------------


def _flash(asked: Asked) -> Tensor:
    width = asked.query.shape[-1]
    tensors = asked.tensors
    if width % 8:
        tensors = tuple(torch.nn.functional.pad(one, (0, 8 - width % 8)) for one in tensors)  # type: ignore[assignment]
    out = _aten._scaled_dot_product_flash_attention(
        *tensors, asked.dropout_p, asked.is_causal, False, scale=_scale(asked)
    )[0]
    return out[..., :width] if width % 8 else out


def _efficient(asked: Asked) -> Any:
    query, key, value = asked.tensors
    if key.shape[1] != query.shape[1]:
        times = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
    return _aten._scaled_dot_product_efficient_attention(
        query, key, value, _bias(asked), asked.learns, asked.dropout_p, asked.is_causal, scale=asked.scale
    )[0]


def _cudnn(asked: Asked) -> Any:
    return _aten._scaled_dot_product_cudnn_attention(
        *asked.tensors, _bias(asked), asked.learns, asked.dropout_p, asked.is_causal, False, scale=asked.scale
    )[0]


_RUN = {_FLASH: _flash, _EFFICIENT: _efficient, _CUDNN: _cudnn}


def _scale(asked: Asked) -> float:
    return 1 / math.sqrt(asked.query.shape[-1]) if asked.scale is None else asked.scale


def _bias(asked: Asked) -> Tensor | None:
    """The mask as numbers that are added, for every batch and head."""
    mask, query = asked.attn_mask, asked.query
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask.logical_not(), -math.inf)
    return mask.expand(*query.shape[:3], asked.key.shape[2])


def _grouped(asked: Asked) -> dict[str, bool]:
    """The argument that not every torch has."""
    return {"enable_gqa": True} if asked.enable_gqa else {}
