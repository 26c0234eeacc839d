"""``flash_attn.layers.rotary``: rotary position embedding, in place and not."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gapless.emulation.standins.fused_attention import rotate
from gapless.emulation.standins.launch import launch
from gapless.emulation.standins.packages.flash_attn._package import PACKAGE

_MODULE = "flash_attn.layers.rotary"
_TRITON = "flash_attn.ops.triton.rotary"
Offsets = int | Tensor


@PACKAGE.provides(_TRITON)
def apply_rotary(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    seqlen_offsets: Offsets = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    interleaved: bool = False,
    inplace: bool = False,
    conjugate: bool = False,
) -> Tensor:
    """`x` rotated by its positions, in one kernel; with `cu_seqlens` it is ``[tokens, heads, width]``."""

    def body(source: Tensor, cos: Tensor, sin: Tensor, starts: Tensor | None, offsets: Offsets) -> Tensor:
        turn = partial(rotate, cos=cos, sin=sin, interleaved=interleaved, inverse=conjugate)
        if starts is None:
            turned = turn(source, offsets=offsets)
        else:
            at = starts.tolist()
            parts = [
                turn(source[None, i:j], offsets=int(offsets[row]) if isinstance(offsets, Tensor) else offsets)
                for row, (i, j) in enumerate(itertools.pairwise(at))
            ]
            turned = torch.cat([*(part[0] for part in parts), source[at[-1] :]])
        return source.copy_(turned) if inplace else turned

    written = (x,) if inplace else ()
    return launch(  # type: ignore[no-any-return]
        "flash_attn::rotary_kernel", body, x, cos, sin, cu_seqlens, seqlen_offsets, writes=written,
        shaped=lambda source, *_: source if inplace else torch.empty_like(source),
    )  # fmt: skip


class _Rotary(torch.autograd.Function):
    """Rotates parts of the width of heads; backward turns them back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, turn: Any, inplace: bool) -> Tensor:  # type: ignore[override]
        ctx.turn, ctx.inplace = turn, inplace
        if inplace:
            ctx.mark_dirty(x)
        return turn(x, inplace, False)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        # The package turns some gradients in place; a copy launches what that would.
        return ctx.turn(gradient, False, True), None, None


@PACKAGE.provides(_MODULE)
def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: Offsets = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
) -> Tensor:
    """`x` ``[batch, length, heads, width]`` rotated by its positions."""

    def turn(x: Tensor, inplace: bool, back: bool) -> Tensor:
        return apply_rotary(x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved, inplace, back)

    return _Rotary.apply(x, turn, inplace)  # type: ignore[no-any-return]


PACKAGE.holds(_MODULE, apply_rotary_emb_func=apply_rotary_emb)


@PACKAGE.provides(_MODULE)
def apply_rotary_emb_qkv_(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    cos_k: Tensor | None = None,
    sin_k: Tensor | None = None,
    interleaved: bool = False,
    seqlen_offsets: Offsets = 0,
    num_heads_q: int | None = None,
) -> Tensor:
    """Queries and keys of ``[batch, length, 3, heads, width]``, or all heads in one axis, rotated in place.

    One kernel for both where they share their tables.
    """

    def turn(qkv: Tensor, inplace: bool, back: bool) -> Tensor:
        out = qkv if inplace else qkv.clone()
        if qkv.dim() == 5:
            both, query, key = out[:, :, :2].flatten(2, 3), out[:, :, 0], out[:, :, 1]
        elif num_heads_q is not None:
            keys = (qkv.shape[2] - num_heads_q) // 2
            both = out[:, :, : num_heads_q + keys]
            query, key = both[:, :, :num_heads_q], both[:, :, num_heads_q:]
        else:
            raise ValueError("num_heads_q must be given where all heads are in one axis")
        share = cos_k is None and sin_k is None and both.data_ptr() == out.data_ptr()
        tables = ((both, cos, sin),) if share else (
            (query, cos, sin),
            (key, cos if cos_k is None else cos_k, sin if sin_k is None else sin_k),
        )  # fmt: skip
        for part, c, s in tables:
            apply_rotary(part, c, s, seqlen_offsets, None, None, interleaved, True, back)
        return out

    return _Rotary.apply(qkv, turn, True)  # type: ignore[no-any-return]


@PACKAGE.provides(_MODULE)
def apply_rotary_emb_kv_(
    kv: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, seqlen_offsets: Offsets = 0
) -> Tensor:
    """Keys of ``[batch, length, 2, heads, width]`` rotated in place."""

    def turn(kv: Tensor, inplace: bool, back: bool) -> Tensor:
        out = kv if inplace else kv.clone()
        apply_rotary(out[:, :, 0], cos, sin, seqlen_offsets, None, None, interleaved, True, back)
        return out

    return _Rotary.apply(kv, turn, True)  # type: ignore[no-any-return]


@PACKAGE.provides(_MODULE)
def apply_rotary_emb_torch(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """Rotate with torch's operators, for positions from 0."""
    half = cos.shape[-1]
    c, s = cos.unsqueeze(-2), sin.unsqueeze(-2)
    part, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        a, b = part[..., ::2], part[..., 1::2]
        return torch.cat((torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2), rest), -1)
    a, b = part.chunk(2, -1)
    return torch.cat((a * c - b * s, a * s + b * c, rest), -1)


@PACKAGE.provides(_MODULE)
class RotaryEmbedding(torch.nn.Module):
    """Tables of angles for `dim` of the width, used in place; with `scale_base` also XPos' scales."""

    inv_freq: Any
    scale: Any

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        interleaved: bool = False,
        scale_base: float | None = None,
        device: Any = None,
        **_: Any,
    ) -> None:
        super().__init__()
        self.dim, self.base, self.interleaved, self.scale_base = dim, float(base), interleaved, scale_base
        steps = torch.arange(0, dim, 2, device=device, dtype=torch.float32)
        self.register_buffer("inv_freq", 1.0 / (self.base ** (steps / dim)), persistent=False)
        scale = (steps + 0.4 * dim) / (1.4 * dim) if scale_base is not None else None
        self.register_buffer("scale", scale, persistent=False)
        self._seq_len_cached = 0
        self._cos_cached: Tensor | None = None
        self._sin_cached: Tensor | None = None
        self._cos_k_cached: Tensor | None = None
        self._sin_k_cached: Tensor | None = None

    def _update_cos_sin_cache(self, seqlen: int, device: Any = None, dtype: Any = None) -> None:
        held = self._cos_cached
        if (
            held is not None
            and seqlen <= self._seq_len_cached
            and (held.device, held.dtype) == (device, dtype)
        ):
            return
        self._seq_len_cached = seqlen
        angles = torch.outer(torch.arange(seqlen, device=device, dtype=torch.float32), self.inv_freq.float())
        cos, sin = torch.cos(angles), torch.sin(angles)
        if self.scale is None or self.scale_base is None:
            self._cos_cached, self._sin_cached = cos.to(dtype), sin.to(dtype)
            return
        power = (torch.arange(seqlen, device=device, dtype=torch.float32) - seqlen // 2) / self.scale_base
        scale = self.scale ** power[:, None]
        self._cos_cached, self._sin_cached = (cos * scale).to(dtype), (sin * scale).to(dtype)
        self._cos_k_cached, self._sin_k_cached = (cos / scale).to(dtype), (sin / scale).to(dtype)

    def forward(
        self,
        qkv: Tensor,
        kv: Tensor | None = None,
        seqlen_offset: Offsets = 0,
        max_seqlen: int | None = None,
        num_heads_q: int | None = None,
    ) -> Any:
        """`qkv` rotated in place; with `kv` it is the queries alone, and both are returned."""
        if max_seqlen is None and isinstance(seqlen_offset, int):
            max_seqlen = qkv.shape[1] + seqlen_offset
        if max_seqlen is not None:
            self._update_cos_sin_cache(max_seqlen, qkv.device, qkv.dtype)
        cos, sin, cos_k, sin_k = self._cos_cached, self._sin_cached, self._cos_k_cached, self._sin_k_cached
        assert cos is not None
        assert sin is not None
        if kv is None:
            return apply_rotary_emb_qkv_(
                qkv, cos, sin, cos_k, sin_k, self.interleaved, seqlen_offset, num_heads_q
            )
        query = apply_rotary_emb(qkv, cos, sin, self.interleaved, True, seqlen_offset)
        cos_k, sin_k = (cos, sin) if cos_k is None or sin_k is None else (cos_k, sin_k)
        return query, apply_rotary_emb_kv_(kv, cos_k, sin_k, self.interleaved, seqlen_offset)
