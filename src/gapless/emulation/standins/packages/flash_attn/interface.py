"""Attention in all its entry points."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gapless.emulation.standins.fused_attention import (
    NO_WINDOW,
    AttentionRules,
    attend,
    attend_with_sums,
    rotate,
)
from gapless.emulation.standins.launch import LaunchState, differentiable, launch, without_emulation
from gapless.emulation.standins.packages.flash_attn._package import PACKAGE
from gapless.emulation.support.refusals import refuse

_INTERFACE = ("flash_attn", "flash_attn.flash_attn_interface")
_HALVES = (torch.float16, torch.bfloat16)


def _check_inputs(*tensors: Tensor) -> None:
    """Raises RuntimeError where the kernels would: other dtypes than halves, heads that do not divide."""
    if LaunchState.core is not None and tensors[0].dtype not in _HALVES:
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    if tensors[0].shape[-2] % tensors[1].shape[-2]:
        raise RuntimeError("Number of heads in key/value must divide number of heads in query")


def _edges(window: Sequence[int]) -> tuple[int, int]:
    left, right = window
    return left, right


def _shapes(query: Tensor, key: Tensor) -> list[tuple[int, ...]]:
    """Return the shapes of the work: query, key and value as ``[batch, heads, length, width]``."""
    batch, queries, heads, width = query.shape
    return [(batch, heads, queries, width), *[(batch, heads, key.shape[1], width)] * 2]


def _own(rules: AttentionRules, number: int) -> AttentionRules:
    """`rules` for one of several sequences, which may have slopes of their own."""
    if rules.slopes is None or rules.slopes.dim() != 2:
        return rules
    return rules._replace(slopes=rules.slopes[number])


def _dense(rules: AttentionRules, sums: bool, query: Tensor, key: Tensor, value: Tensor) -> Any:
    return (attend_with_sums if sums else attend)(query, key, value, rules)


def attention(kernel: str, rules: AttentionRules, sums: bool, q: Tensor, k: Tensor, v: Tensor) -> Any:
    """Launch `kernel` over ``[batch, length, heads, width]``; with `sums` return each row's sum too."""
    _check_inputs(q, k)
    body = partial(_dense, rules, sums)
    return _launch(kernel, body, q, k, v, work=_shapes(q, k), sums=sums, dropout=rules.dropout)


def _launch(kernel: str, body: Any, *tensors: Tensor, work: Any, sums: bool, dropout: float) -> Any:
    return differentiable(
        f"{kernel}_forward", body, *tensors, backward=f"{kernel}_backward", work=work, constants=int(sums),
        random=dropout > 0, shaped=partial(_outline, sums),
    )  # fmt: skip


def _outline(sums: bool, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Any:
    """Results of the right shape: the rows' sums are ``[batch, heads, length]``."""
    out = query.new_empty(*query.shape[:-1], value.shape[-1])
    lines = query.new_empty(query.shape[:-1], dtype=torch.float32).transpose(-1, -2).contiguous()
    return (out, lines) if sums else out


def _with_probs(out: Any, wanted: bool) -> Any:
    """Behind the sums stand the probabilities, for debugging alone: None."""
    return (*out, None) if wanted else out


@PACKAGE.provides(*_INTERFACE)
def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = NO_WINDOW,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Attention over ``[batch, length, heads, width]``."""
    rules = AttentionRules(softmax_scale, causal, _edges(window_size), softcap, alibi_slopes, dropout_p)
    out = attention("flash_attn::_flash_attn", rules, return_attn_probs, q, k, v)
    return _with_probs(out, return_attn_probs)


@PACKAGE.provides(*_INTERFACE)
def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Attention with keys and values stacked, ``[batch, length, 2, heads, width]``."""
    key, value = kv.unbind(2)
    return flash_attn_func(q, key, value, *args, **kwargs)


@PACKAGE.provides(*_INTERFACE)
def flash_attn_qkvpacked_func(qkv: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Attention with all three stacked, ``[batch, length, 3, heads, width]``."""
    query, key, value = qkv.unbind(2)
    return flash_attn_func(query, key, value, *args, **kwargs)


class _Compiled:
    """The compiled module behind the package: its functions are there, and refuse when they are called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def function(*_: Any, **__: Any) -> Any:
            raise refuse(f"`flash_attn_2_cuda.{name}`", "flash_attn_func and similar functions are computed.")

        return function


PACKAGE.holds(_INTERFACE[1], flash_attn_gpu=_Compiled())


# -- sequences of different lengths, one behind the other ----------------------------------------------


def _bounds(starts: Tensor, used: Tensor | None = None) -> list[tuple[int, int]]:
    """Begin and end of each sequence, or of as much of it as is `used`, read where nobody counts it."""
    with without_emulation():
        pairs = list(itertools.pairwise(starts.tolist()))
        lengths = [j - i for i, j in pairs] if used is None else used.tolist()
    return [(i, i + length) for (i, _), length in zip(pairs, lengths, strict=True)]


def _one_by_one(
    rules: AttentionRules,
    sums: bool,
    queries: Sequence[tuple[int, int]],
    keys: Sequence[tuple[int, int]],
    query: Tensor,
    key: Tensor,
    value: Tensor,
) -> Any:
    """Attention within each sequence; tokens outside of all give zero."""
    parts, lines, end = [], [], 0
    for number, ((i, j), (m, n)) in enumerate(zip(queries, keys, strict=True)):
        if i > end:
            parts.append(query.new_zeros(i - end, *query.shape[1:-1], value.shape[-1]))
        out = _dense(_own(rules, number), sums, query[None, i:j], key[None, m:n], value[None, m:n])
        if sums:
            out, line = out
            lines.append(line[0])
        parts.append(out[0])
        end = j
    parts.append(query.new_zeros(query.shape[0] - end, *query.shape[1:-1], value.shape[-1]))
    whole = torch.cat(parts)
    return (whole, torch.cat(lines, 1)) if sums else whole


def _gather_pages(cache: Tensor, table: Tensor) -> Tensor:
    """Return the blocks of ``[blocks, length, heads, width]`` named by `table`, concatenated."""
    return cache[table.long()].flatten(1, 2)


@PACKAGE.provides(*_INTERFACE)
def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = NO_WINDOW,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Any:
    """Attention within each of the sequences that lie one behind the other in ``[tokens, heads, width]``.

    The package's binding takes the longest lengths as numbers: a tensor is read, which waits.
    """
    max_seqlen_q, max_seqlen_k = int(max_seqlen_q), int(max_seqlen_k)
    rules = AttentionRules(softmax_scale, causal, _edges(window_size), softcap, alibi_slopes, dropout_p)
    starts, kernel = (cu_seqlens_q, cu_seqlens_k), "flash_attn::_flash_attn_varlen"
    out = attention_apart(kernel, rules, return_attn_probs, q, k, v, *starts, table=block_table)
    return _with_probs(out, return_attn_probs)


def attention_apart(
    kernel: str,
    rules: AttentionRules,
    sums: bool,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts_q: Tensor,
    starts_k: Tensor,
    *,
    table: Tensor | None = None,
    used: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Any:
    """Launch `kernel` within each of several sequences in ``[tokens, heads, width]``.

    Keys may lie in the blocks that `table` names. Of queries and of keys only the first `used` count.
    """
    _check_inputs(q, k)
    for starts in (starts_q, starts_k):
        if starts.dtype is not torch.int32:
            raise RuntimeError("cu_seqlens_q must have dtype int32")
    queries, keys = _bounds(starts_q, used[0]), _bounds(starts_k, used[1])
    if table is not None:
        size = table.shape[1] * k.shape[1]
        keys = [(at * size, at * size + n - m) for at, (m, n) in enumerate(keys)]
    pairs = sum((j - i) * (n - m) for (i, j), (m, n) in zip(queries, keys, strict=True))
    tokens, heads, width = q.shape
    work = [(1, heads, tokens, width), *[(1, heads, pairs // max(tokens, 1), width)] * 2]

    def body(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Any:
        if table is not None:
            key, value = _gather_pages(key, table).flatten(0, 1), _gather_pages(value, table).flatten(0, 1)
        return _one_by_one(rules, sums, queries, keys, query, key, value)

    tensors = (q, k, v, starts_q, starts_k)
    return _launch(kernel, body, *tensors, work=work, sums=sums, dropout=rules.dropout)


@PACKAGE.provides(*_INTERFACE)
def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, *args: Any, **kwargs: Any) -> Any:
    """`flash_attn_varlen_func` with keys and values stacked, ``[tokens, 2, heads, width]``."""
    key, value = kv.unbind(1)
    return flash_attn_varlen_func(q, key, value, *args, **kwargs)


@PACKAGE.provides(*_INTERFACE)
def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, *args: Any, **kwargs: Any
) -> Any:
    """`flash_attn_varlen_func` with all three stacked, ``[tokens, 3, heads, width]``."""
    query, key, value = qkv.unbind(1)
    longest = (max_seqlen, max_seqlen)
    return flash_attn_varlen_func(query, key, value, cu_seqlens, cu_seqlens, *longest, *args, **kwargs)


# -- decoding with a cache -----------------------------------------------------------------------------


@PACKAGE.provides(*_INTERFACE)
def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = NO_WINDOW,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Write `k` and `v` into the cache behind what each sequence has there, and attend to all of it.

    The kernel has no backward pass. With a `block_table` and new keys the package reads the longest length.
    """
    _check_inputs(q, k_cache)
    if isinstance(cache_seqlens, int):
        cache_seqlens = torch.full((q.shape[0],), cache_seqlens, dtype=torch.int32, device=k_cache.device)
    if block_table is not None and k is not None and cache_seqlens is not None:
        cache_seqlens.max().item()
    rules = AttentionRules(softmax_scale, causal, _edges(window_size), softcap, alibi_slopes)
    turn = None
    if rotary_cos is not None and rotary_sin is not None:
        turn = partial(rotate, cos=rotary_cos, sin=rotary_sin, interleaved=rotary_interleaved)

    def body(query: Tensor, keys: Tensor, values: Tensor, *_: Any) -> Any:
        cache = _Cache(keys, values, block_table, cache_batch_idx)
        outs, lines = [], []
        for row in range(query.shape[0]):
            length = int(cache_seqlens[row]) if isinstance(cache_seqlens, Tensor) else cache.length
            own = query[row : row + 1]
            if k is not None and v is not None:
                new = k[row : row + 1]
                if turn is not None:
                    new = turn(new, offsets=length)
                    own = _rotate_query(turn, own, length, moving=causal or tuple(window_size) != NO_WINDOW)
                cache.write(row, length, new[0], v[row])
                length += new.shape[1]
            left = int(cache_leftpad[row]) if cache_leftpad is not None else 0
            held_k, held_v = (tensor[None, left:length] for tensor in cache.read(row, length))
            out, line = attend_with_sums(own, held_k, held_v, _own(rules, row))
            outs.append(out)
            lines.append(line)
        return torch.cat(outs), torch.cat(lines)

    tensors = [q, k_cache, v_cache, *(tensor for tensor in (k, v, cache_seqlens) if tensor is not None)]
    work = _shapes(q, k_cache) if block_table is None else None
    with torch.no_grad():
        out, sums = launch("flash_attn::fwd_kvcache", body, *tensors, work=work)
    return (out, sums) if return_softmax_lse else out


def _rotate_query(turn: Any, query: Tensor, length: int, moving: bool) -> Tensor:
    """A query behind `length` keys; unless `moving` all its rows stand at one place."""
    if moving:
        return turn(query, offsets=length)  # type: ignore[no-any-return]
    return turn(query.transpose(0, 1), offsets=length).transpose(0, 1)  # type: ignore[no-any-return]


class _Cache:
    """Keys and values of several sequences, each in a row of its own or in blocks that a table names."""

    def __init__(self, keys: Tensor, values: Tensor, table: Tensor | None, rows: Tensor | None) -> None:
        self.both, self.table, self.rows = (keys, values), table, rows
        self.length = keys.shape[1] if table is None else keys.shape[1] * table.shape[1]

    def _at(self, row: int, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Return row or block, and place in it, of positions `begin` to `end` of a sequence."""
        at = torch.arange(begin, end)
        if self.table is None:
            own = row if self.rows is None else int(self.rows[row])
            return torch.full_like(at, own), at
        size = self.both[0].shape[1]
        return self.table[row].long()[at // size], at % size

    def write(self, row: int, begin: int, key: Tensor, value: Tensor) -> None:
        at = self._at(row, begin, begin + key.shape[0])
        for held, new in zip(self.both, (key, value), strict=True):
            held[at] = new

    def read(self, row: int, end: int) -> list[Tensor]:
        at = self._at(row, 0, end)
        return [held[at] for held in self.both]
