"""``xformers.ops.memory_efficient_attention``."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from gapless.emulation.standins.fused_attention import AttentionRules, attend
from gapless.emulation.standins.launch import differentiable
from gapless.emulation.standins.packages.xformers._package import PACKAGE

_MODULES = ("xformers.ops", "xformers.ops.fmha")
for _name in (
    "AttentionOp",
    "AttentionOpBase",
    "MemoryEfficientAttentionCutlassOp",
    "MemoryEfficientAttentionFlashAttentionOp",
    "MemoryEfficientAttentionCutlassFwdFlashBwOp",
    "MemoryEfficientAttentionCkOp",
    "MemoryEfficientAttentionSplitKCkOp",
):
    for _module in _MODULES:
        PACKAGE.holds(_module, **{_name: type(_name, (), {"__module__": _module})})


def _heads(tensor: Tensor) -> Tensor:
    """Return ``[batch, length, heads, width]`` for any form that the operator takes."""
    return tensor[:, :, None] if tensor.dim() == 3 else tensor.flatten(2, 3) if tensor.dim() == 5 else tensor


def _body(
    rules: AttentionRules, bias: Any, query: Tensor, key: Tensor, value: Tensor, added: Tensor | None
) -> Tensor:
    q, k, v = _heads(query), _heads(key), _heads(value)
    if bias is not None:
        added = bias.materialize((q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
    elif added is not None and added.dim() == 3:
        added = added.unflatten(0, (-1, q.shape[2])) if added.shape[0] != 1 else added[None]
    elif added is not None and added.dim() == 5:
        added = added.flatten(1, 2)
    out = attend(q, k, v, rules, added)
    return out.reshape(*query.shape[:-1], value.shape[-1])


@PACKAGE.provides(*_MODULES)
def memory_efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,
    output_dtype: Any = None,
) -> Tensor:
    """Attention over ``[batch, length, heads, width]``, or without heads, or with heads in groups."""
    tensor = attn_bias if isinstance(attn_bias, Tensor) else None
    bias = None if tensor is not None else attn_bias
    q, k = _heads(query), _heads(key)
    work = [(q.shape[0], q.shape[2], q.shape[1], q.shape[3]), *[(q.shape[0], q.shape[2], *k.shape[1::2])] * 2]
    out: Tensor = differentiable(
        "xformers::efficient_attention_forward",
        partial(_body, AttentionRules(scale=scale, dropout=p), bias),
        query,
        key,
        value,
        tensor,
        backward="xformers::efficient_attention_backward",
        work=work,
        random=p > 0,
        shaped=lambda query, key, value, _: query.new_empty(*query.shape[:-1], value.shape[-1]),
    )
    return out if output_dtype is None else out.to(output_dtype)


@PACKAGE.provides(*_MODULES)
def memory_efficient_attention_forward(*args: Any, **kwargs: Any) -> Tensor:
    """`memory_efficient_attention` without gradients."""
    return memory_efficient_attention(*args, **kwargs).detach()
