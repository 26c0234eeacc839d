"""Attention as a GPU keeps it in memory: one kernel, where the CPU may take many steps.

A fused kernel on a GPU keeps its result and a number for each row; on the CPU, attention with dropout is made
of matrix products whose results lie in memory together. Values are those of the CPU either way. Only a
recording of memory needs the difference.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from gapless.emulate.functions import FunctionMode, handles
from gapless.emulate.local import local
from gapless.emulate.memory import MemoryRecorder
from gapless.torch_internals import functorch, keeps_graph

Tensor = torch.Tensor
_HALVES = (torch.float16, torch.bfloat16)
_ROWS = 32
"""Rows of numbers that the memory-efficient kernel rounds up to (`attention.cu` of torch)."""
_BLOCK = 128
"""Rows that the backward pass of flash attention rounds up to (`flash_api.cpp` of torch)."""
_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


@handles(torch.nn.functional.scaled_dot_product_attention)
def _attention(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    memory = mode.core.placement.memory
    if memory is None:
        return func(*args, **kwargs)
    named = {**dict(zip(_NAMES, args, strict=False)), **kwargs}
    query, key, value = named["query"], named["key"], named["value"]
    if not mode.on_device(query) or not fused(query, key, value, named.get("attn_mask")):
        return func(*args, **kwargs)
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        query, key, value = (one.to(dtype) for one in (query, key, value))
    rest = {name: given for name, given in named.items() if name not in ("query", "key", "value")}
    return _Fused.apply(memory, func, rest, query, key, value)


def fused(query: Any, key: Any, value: Any, mask: Any) -> bool:
    """Whether a GPU would take one kernel for it, as far as shapes and settings tell."""
    cuda = torch.backends.cuda
    plain = all(type(one) in (Tensor, torch.nn.Parameter) and one.dim() == 4 for one in (query, key, value))
    if not plain or (mask is not None and mask.requires_grad):
        return False
    if functorch.maybe_current_level() is not None:
        return False
    half = query.dtype in _HALVES or torch.is_autocast_enabled("cuda")
    if half and mask is None and cuda.flash_sdp_enabled():
        return True
    return cuda.mem_efficient_sdp_enabled() and (half or query.dtype is torch.float32)


class _Fused(torch.autograd.Function):
    """Attention whose steps ask for no memory, and whose result does."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, memory: MemoryRecorder, func: Any, rest: dict[str, Any], *tensors: Tensor
    ) -> Tensor:
        memory.muted += 1
        try:
            with torch.enable_grad():
                inner = [one.detach().requires_grad_(one.requires_grad) for one in tensors]
                out = func(*inner, **rest)
        finally:
            memory.muted -= 1
        query = tensors[0]
        result = _recorded(out)
        kept = [_asked(query, (*query.shape[:2], -(-query.shape[2] // _ROWS) * _ROWS), torch.float32)]
        mask = rest.get("attn_mask")
        if mask is not None and mask.dtype is torch.bool:
            kept.append(_asked(query, mask.shape, query.dtype))  # the kernel wants it as numbers
        ctx.memory, ctx.inner, ctx.out = memory, inner, out
        ctx.save_for_backward(*tensors, result, *kept)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        query = ctx.saved_tensors[0]
        wanted = [one for one in ctx.inner if one.requires_grad]
        ctx.memory.muted += 1
        try:
            made = iter(torch.autograd.grad(ctx.out, wanted, gradient, retain_graph=True))
            found = [next(made) if one.requires_grad else None for one in ctx.inner]
        finally:
            ctx.memory.muted -= 1
        if not _graph_stays():
            ctx.inner = ctx.out = None  # as saved tensors go, whoever still holds the result
        gradients = [None if one is None else _recorded(one) for one in found]
        if query.dtype in _HALVES:
            batch, heads, length, width = query.shape
            rows = -(-length // _BLOCK) * _BLOCK
            sums = _asked(query, (batch, heads, rows), torch.float32)
            wide = _asked(query, (batch, rows, heads, -(-width // _ROWS) * _ROWS), torch.float32)
            del sums, wide
        return (None, None, None, *gradients)


def _graph_stays() -> bool:
    """Whether the backward pass that is under way was asked to retain the graph."""
    return keeps_graph is None or bool(keeps_graph())


def _recorded(tensor: Tensor) -> Tensor:
    """A copy of what was made unseen, which is seen."""
    local.quiet += 1
    try:
        return tensor.detach().clone()
    finally:
        local.quiet -= 1


def _asked(like: Tensor, shape: Any, dtype: torch.dtype) -> Tensor:
    """Memory that the kernel asks for, with nothing in it."""
    return like.new_empty(tuple(shape), dtype=dtype)
