"""``xformers.ops.fmha.attn_bias``: which query sees which key, said by objects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gapless.emulation.standins.packages.xformers._package import PACKAGE

_BIASES = ("xformers.ops.fmha.attn_bias", "xformers.ops.fmha")
_ALSO = (*_BIASES, "xformers.ops")


@PACKAGE.provides(*_ALSO)
class AttentionBias:
    """Gives itself as numbers that are added to scores, for ``[…, queries, keys]``."""

    def visibility_mask(self, queries: int, keys: int) -> Tensor:
        """Return the mask of keys that each query sees, ``[queries, keys]``."""
        raise NotImplementedError

    def materialize(self, shape: Sequence[int], dtype: Any = torch.float32, device: Any = "cpu") -> Tensor:
        """Return zeros where a query sees a key, and minus infinity elsewhere."""
        mask = self.visibility_mask(*shape[-2:])
        numbers = torch.zeros(mask.shape).masked_fill(~mask, -math.inf)
        return numbers.to(device=device, dtype=dtype).expand(tuple(shape))


PACKAGE.holds("xformers.ops", AttentionMask=AttentionBias)


def _behind(queries: int, keys: int, shift: int = 0) -> Tensor:
    """Return how far each key is before each query, if query 0 is at key `shift`."""
    return torch.arange(queries)[:, None] + shift - torch.arange(keys)[None]


@PACKAGE.provides(*_ALSO)
class LowerTriangularMask(AttentionBias):
    """Query i sees the keys up to i."""

    def __init__(self, **_: Any) -> None:
        pass

    def visibility_mask(self, queries: int, keys: int) -> Tensor:
        return _behind(queries, keys) >= 0

    def add_bias(self, bias: Tensor) -> LowerTriangularMaskWithTensorBias:
        """Return this mask with numbers that are added to scores."""
        return LowerTriangularMaskWithTensorBias(bias)


@PACKAGE.provides(*_BIASES)
class LowerTriangularMaskWithTensorBias(LowerTriangularMask):
    """Query i sees the keys up to i, with numbers added to their scores."""

    def __init__(self, bias: Tensor) -> None:
        self._bias = bias
        self._subtensor = bias

    def materialize(self, shape: Sequence[int], dtype: Any = torch.float32, device: Any = "cpu") -> Tensor:
        return super().materialize(shape, dtype, device) + self._bias


@PACKAGE.provides(*_BIASES)
class LowerTriangularFromBottomRightMask(AttentionBias):
    """A causal mask whose last query sees all keys, the one before it one fewer."""

    def __init__(self, **_: Any) -> None:
        pass

    def visibility_mask(self, queries: int, keys: int) -> Tensor:
        return _behind(queries, keys, keys - queries) >= 0

    def make_local_attention(self, window_size: int) -> LowerTriangularFromBottomRightLocalAttentionMask:
        """Return this mask limited to the last `window_size` keys."""
        return LowerTriangularFromBottomRightLocalAttentionMask(window_size)


@PACKAGE.provides(*_BIASES)
class LowerTriangularFromBottomRightLocalAttentionMask(LowerTriangularFromBottomRightMask):
    """A `LowerTriangularFromBottomRightMask` limited to the last `_window_size` keys."""

    def __init__(self, _window_size: int) -> None:
        self._window_size = _window_size

    def visibility_mask(self, queries: int, keys: int) -> Tensor:
        return super().visibility_mask(queries, keys) & (
            _behind(queries, keys, keys - queries) < self._window_size
        )


@PACKAGE.provides(*_BIASES)
class LocalAttentionFromBottomRightMask(AttentionBias):
    """Each query sees so many keys to the left of it, and so many to the right."""

    def __init__(self, window_left: int, window_right: int) -> None:
        self.window_left, self.window_right = window_left, window_right

    def visibility_mask(self, queries: int, keys: int) -> Tensor:
        behind = _behind(queries, keys, keys - queries)
        return (behind <= self.window_left) & (behind >= -self.window_right)


@PACKAGE.provides(*_BIASES, name="_SeqLenInfo")
class SeqLenInfo:
    """The starts of concatenated sequences; also as a tensor, which is copied to the GPU."""

    def __init__(self, starts: list[int], device: Any = None) -> None:
        self.seqstart_py = starts
        self.min_seqlen = min((j - i for i, j in self.intervals()), default=0)
        self.max_seqlen = max((j - i for i, j in self.intervals()), default=0)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.seqstart = torch.tensor(starts, dtype=torch.int32, device=device)

    @classmethod
    def from_seqlens(cls, seqlens: Sequence[int], *, device: Any = None) -> SeqLenInfo:
        """Return the starts of sequences with these lengths."""
        starts = [0]
        for length in seqlens:
            starts.append(starts[-1] + int(length))
        return cls(starts, device)

    def intervals(self) -> list[tuple[int, int]]:
        """Begin and end of each."""
        return list(zip(self.seqstart_py, self.seqstart_py[1:], strict=False))


@PACKAGE.provides(*_BIASES)
class BlockDiagonalMask(AttentionBias):
    """Queries see the keys of their own sequence."""

    _inside: AttentionBias | None = None

    def __init__(self, q_seqinfo: SeqLenInfo, k_seqinfo: SeqLenInfo, _batch_sizes: Any = None) -> None:
        self.q_seqinfo, self.k_seqinfo, self._batch_sizes = q_seqinfo, k_seqinfo, _batch_sizes

    @classmethod
    def from_seqlens(
        cls, q_seqlen: Sequence[int], kv_seqlen: Sequence[int] | None = None, *, device: Any = None
    ) -> BlockDiagonalMask:
        """For sequences with these lengths; keys have the same where nothing else is said."""
        queries = SeqLenInfo.from_seqlens(q_seqlen, device=device)
        same = kv_seqlen is None or list(kv_seqlen) == list(q_seqlen)
        keys = queries if same else SeqLenInfo.from_seqlens(kv_seqlen or (), device=device)
        return cls(queries, keys)

    @classmethod
    def from_tensor_list(cls, tensors: Sequence[Tensor]) -> tuple[BlockDiagonalMask, Tensor]:
        """Return a mask for tensors ``[batch, length, …]``, and them joined to ``[1, lengths, …]``."""
        sizes = [tensor.shape[0] for tensor in tensors]
        mask = cls.from_seqlens([tensor.shape[1] for tensor in tensors for _ in range(tensor.shape[0])])
        mask._batch_sizes = sizes
        return mask, torch.cat([tensor.reshape(1, -1, *tensor.shape[2:]) for tensor in tensors], 1)

    @classmethod
    def from_tensor_lists_qkv(
        cls,
        tensors_q: Sequence[Tensor],
        tensors_k: Sequence[Tensor],
        tensors_v: Sequence[Tensor] | None = None,
    ) -> tuple[BlockDiagonalMask, Tensor, Tensor, Tensor | None]:
        """Like `from_tensor_list`, for queries, keys and values each."""
        lengths = [
            [tensor.shape[1] for tensor in some for _ in range(tensor.shape[0])]
            for some in (tensors_q, tensors_k)
        ]
        joined = [
            None
            if some is None
            else torch.cat([tensor.reshape(1, -1, *tensor.shape[2:]) for tensor in some], 1)
            for some in (tensors_q, tensors_k, tensors_v)
        ]
        return cls.from_seqlens(*lengths), *joined  # type: ignore[return-value]

    def split_queries(self, tensor: Tensor) -> list[Tensor]:
        """Split ``[1, lengths, …]`` into the tensors that were joined."""
        parts = [tensor[:, i:j] for i, j in self.q_seqinfo.intervals()]
        if self._batch_sizes is None:
            return parts
        joined, at = [], 0
        for size in self._batch_sizes:
            joined.append(torch.cat(parts[at : at + size]))
            at += size
        return joined

    split = split_queries

    def visibility_mask(self, queries: int, keys: int) -> Tensor:
        whole = torch.zeros(queries, keys, dtype=torch.bool)
        for (i, j), (m, n) in zip(self.q_seqinfo.intervals(), self.k_seqinfo.intervals(), strict=True):
            whole[i:j, m:n] = True if self._inside is None else self._inside.visibility_mask(j - i, n - m)
        return whole

    def make_causal(self) -> BlockDiagonalCausalMask:
        """Return this mask, causal within each sequence."""
        return BlockDiagonalCausalMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes)

    def make_causal_from_bottomright(self) -> BlockDiagonalCausalFromBottomRightMask:
        """Return this mask, causal within each sequence and aligned at its end."""
        return BlockDiagonalCausalFromBottomRightMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes)


@PACKAGE.provides(*_BIASES)
class BlockDiagonalCausalMask(BlockDiagonalMask):
    """Queries see the keys of their own sequence up to their own place."""

    _inside = LowerTriangularMask()


@PACKAGE.provides(*_BIASES)
class BlockDiagonalCausalFromBottomRightMask(BlockDiagonalMask):
    """Queries see the keys of their own sequence, the last one all of them."""

    _inside = LowerTriangularFromBottomRightMask()
