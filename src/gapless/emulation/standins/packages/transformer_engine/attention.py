"""``transformer_engine.pytorch.DotProductAttention``: a fused kernel in half precision, else its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gapless.emulation.standins.fused_attention import NO_WINDOW, AttentionRules, attend
from gapless.emulation.standins.launch import differentiable
from gapless.emulation.standins.packages.flash_attn import interface
from gapless.emulation.standins.packages.transformer_engine._package import PACKAGE

_MODULES = ("transformer_engine.pytorch", "transformer_engine.pytorch.attention")
_KERNEL = "transformer_engine::fused_attn"
_HALVES = (torch.float16, torch.bfloat16)


def _hidden(query: Tensor, mask: Any, bias: Tensor | None) -> Tensor | None:
    """Return what is added to scores: `bias`, and minus infinity where `mask` is true.

    Of padding there may be two masks, of queries and of keys.
    """
    if isinstance(mask, tuple):
        mask = mask[1]
    if mask is None:
        return bias
    added = torch.zeros(mask.shape, dtype=torch.float32, device=query.device).masked_fill_(mask, -torch.inf)
    return added if bias is None else added + bias


@PACKAGE.provides(*_MODULES)
class DotProductAttention(nn.Module):
    """Attention over queries, keys and values of ``[length, batch, heads, width]``, or as `qkv_format` says.

    Raises:
        NotImplementedError: the sequence is split over processes.
    """

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int | tuple[int, int],
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        sequence_parallel: bool = False,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        tp_group: Any = None,
        layer_number: int | None = None,
        attention_type: str = "self",
        cp_group: Any = None,
        cp_global_ranks: Any = None,
        cp_stream: Any = None,
        cp_comm_type: str = "p2p",
        softmax_scale: float | None = None,
        **_: Any,
    ) -> None:
        super().__init__()
        self.set_context_parallel_group(cp_group)
        self.num_attention_heads, self.attention_dropout = num_attention_heads, attention_dropout
        self.qkv_format, self.attn_mask_type = qkv_format, attn_mask_type
        self.window_size, self.softmax_scale = window_size, softmax_scale
        self.attention_type, self.layer_number = attention_type, layer_number
        keys = kv_channels if isinstance(kv_channels, int) else kv_channels[0]
        self.hidden_size_per_attention_head_k = keys

    def set_context_parallel_group(self, cp_group: Any, *_: Any, **__: Any) -> None:
        """Accept a group of one process.

        Raises:
            NotImplementedError: more processes share a sequence.
        """
        groups = cp_group if isinstance(cp_group, list) else [] if cp_group is None else [cp_group]
        if any(group.size() > 1 for group in groups):
            raise NotImplementedError("the stand-in for Transformer Engine splits no sequence (cp_group)")

    def forward(
        self,
        query_layer: Tensor,
        key_layer: Tensor,
        value_layer: Tensor,
        attention_mask: Any = None,
        qkv_format: str | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_kv: Tensor | None = None,
        *,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        attn_mask_type: str | None = None,
        window_size: tuple[int, int] | None = None,
        core_attention_bias: Tensor | None = None,
        alibi_slopes: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """Each token's mixed values, all heads behind each other."""
        layout = qkv_format or self.qkv_format
        kind = attn_mask_type or self.attn_mask_type
        dropout = self.attention_dropout if self.training else 0.0
        rules = AttentionRules(
            self.softmax_scale,
            "causal" in kind,
            tuple(window_size or self.window_size or NO_WINDOW),  # type: ignore[arg-type]
            0.0,
            alibi_slopes,
            dropout,
        )
        if layout.startswith("thd"):
            assert cu_seqlens_q is not None
            assert cu_seqlens_kv is not None
            starts = cu_seqlens_q, cu_seqlens_kv
            out = interface.attention_apart(
                f"{_KERNEL}_varlen", rules, False, query_layer, key_layer, value_layer, *starts
            )
            return out.flatten(-2)  # type: ignore[no-any-return]
        turned = layout.startswith("sb")
        parts = (query_layer, key_layer, value_layer)
        q, k, v = (part.transpose(0, 1) for part in parts) if turned else parts
        used = "padding" in kind or "arbitrary" in kind
        added = _hidden(q, attention_mask if used else None, core_attention_bias)
        out = _attention(q, k, v, rules, added).flatten(-2)
        return out.transpose(0, 1).contiguous() if turned else out


def _attention(q: Tensor, k: Tensor, v: Tensor, rules: AttentionRules, added: Tensor | None) -> Tensor:
    """Over ``[batch, length, heads, width]``."""
    if q.dtype not in _HALVES:
        return _in_parts(q, k, v, rules, added)
    if added is None:
        return interface.attention(_KERNEL, rules, False, q, k, v)  # type: ignore[no-any-return]

    def body(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        return attend(query, key, value, rules, bias)

    batch, queries, heads, width = q.shape
    work = [(batch, heads, queries, width), *[(batch, heads, k.shape[1], width)] * 2]
    return differentiable(  # type: ignore[no-any-return]
        f"{_KERNEL}_forward", body, q, k, v, added, backward=f"{_KERNEL}_backward", work=work,
        random=rules.dropout > 0,
    )  # fmt: skip


def _in_parts(q: Tensor, k: Tensor, v: Tensor, rules: AttentionRules, added: Tensor | None) -> Tensor:
    """Two products with a softmax between them, as for types that no fused kernel takes."""
    query, key, value = (part.transpose(1, 2) for part in (q, k, v))
    times = query.shape[1] // key.shape[1]
    if times > 1:
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
    scale = rules.scale if rules.scale is not None else query.shape[-1] ** -0.5
    scores = query @ key.transpose(-1, -2) * scale
    if added is not None:
        scores = scores + added
    if rules.causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        scores = scores.masked_fill(hidden.triu(1 + scores.shape[-1] - scores.shape[-2]), -torch.inf)
    weights = torch.softmax(scores, -1)
    if rules.dropout:
        weights = functional.dropout(weights, rules.dropout)
    return (weights @ value).transpose(1, 2).contiguous()
