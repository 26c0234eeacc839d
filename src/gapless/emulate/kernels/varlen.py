"""Attention over sequences laid behind each other, and the kernels below `scaled_dot_product_attention`.

They take (batch, rows, heads, width), or with cumulative lengths (all rows, heads, width), a window of
columns around each row, and slopes that make far columns count less.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from gapless.emulate.kernels import attention, kernel
from gapless.emulate.kernels.attention import Setting

Tensor = torch.Tensor
_Slice = tuple[Any, Any]
_FROM_TOP_LEFT, _FROM_BOTTOM_RIGHT = 1, 2
"""Causal masks of the memory-efficient kernel, by the corner in which they begin."""


def _sequences(
    query: Tensor, key: Tensor, ends_q: Tensor | None, ends_k: Tensor | None, used: Tensor | None
) -> Iterator[_Slice]:
    """Indices of each sequence's rows and columns, along the first two dimensions."""
    lengths = None if used is None else used.tolist()
    if ends_q is None or ends_k is None:
        for batch in range(query.shape[0]):
            last = key.shape[1] if lengths is None else lengths[batch]
            yield (batch, slice(None)), (batch, slice(0, last))
        return
    rows, columns = ends_q.tolist(), ends_k.tolist()
    packed = query.dim() == 4  # (1, all rows, heads, width)
    for number in range(len(rows) - 1):
        end = columns[number + 1] if lengths is None else columns[number] + lengths[number]
        at, of = slice(rows[number], rows[number + 1]), slice(columns[number], end)
        yield ((0, at), (0, of)) if packed else ((at,), (of,))


def _bias(
    rows: int, columns: int, causal: int, window: tuple[int | None, int | None], slopes: Tensor | None
) -> Tensor | None:
    """What is added to the scores (heads or 1, rows, columns); None where every row sees every column."""
    left, right = (-1 if side is None else side for side in window)
    if not causal and left < 0 and right < 0 and slopes is None:
        return None
    shift = 0 if causal == _FROM_TOP_LEFT else columns - rows
    distance = torch.arange(columns) - (torch.arange(rows).unsqueeze(-1) + shift)
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if causal:
        hidden |= distance > 0
    if left >= 0:
        hidden |= distance < -left
    if right >= 0 and not causal:
        hidden |= distance > right
    bias = torch.zeros(hidden.shape).masked_fill(hidden, float("-inf")).unsqueeze(0)
    if slopes is not None:
        bias = bias - slopes.float().reshape(-1, 1, 1) * distance.abs()
    return bias


def _heads_first(tensor: Tensor) -> Tensor:
    """(rows, heads, width) as (1, heads, rows, width)."""
    return tensor.transpose(0, 1).unsqueeze(0)


def _run(
    query: Tensor, key: Tensor, value: Tensor, sequences: list[_Slice], how: dict[str, Any]
) -> tuple[Tensor, list[Tensor], tuple[int, int]]:
    """The result, the sums of each sequence (heads, rows), and the generator's state."""
    dropout, scale, extra = how["dropout"], how["scale"], how.get("bias")
    state = attention._state(dropout)
    out = query.new_zeros(*query.shape[:-1], value.shape[-1])
    sums = []
    for number, (at, of) in enumerate(sequences):
        part = [_heads_first(one) for one in (query[at], key[of], value[of])]
        bias = _bias(part[0].shape[2], part[1].shape[2], how["causal"], how["window"], how.get("slopes"))
        bias = _with(bias, extra, number)
        one, two, three = part
        made, lengths = attention.forward(
            one, two, three, Setting(_for(bias, part[0]), dropout, False, scale)
        )
        out[at] = made[0].transpose(0, 1).to(out.dtype)
        sums.append(lengths[0])
    return out, sums, state


def _back(
    gradient: Tensor, tensors: list[Tensor], sums: list[Tensor], sequences: list[_Slice], how: dict[str, Any]
) -> tuple[list[Tensor], Tensor | None]:
    """Gradients of query, key, value (`tensors`, and the result behind them), and of a bias that learns."""
    query, key, value, out = tensors
    found = [torch.zeros_like(one) for one in (query, key, value)]
    extra = how.get("bias")
    of_bias = torch.zeros_like(extra) if extra is not None and how["learns"] else None
    for number, (at, of) in enumerate(sequences):
        part = [_heads_first(one) for one in (query[at], key[of], value[of], out[at])]
        bias = _bias(part[0].shape[2], part[1].shape[2], how["causal"], how["window"], how.get("slopes"))
        bias = _with(bias, extra, number)
        setting = Setting(_for(bias, part[0]), how["dropout"], False, how["scale"], how["state"])
        own, sums_ = (part[0], part[1], part[2], part[3]), sums[number].unsqueeze(0)
        *made, inner = attention.backward(
            _heads_first(gradient[at]), *own, sums_, setting, of_bias is not None
        )
        for whole, where, one in zip(found, (at, of, of), made, strict=True):
            whole[where] += one[0].transpose(0, 1).to(whole.dtype)
        if of_bias is not None and inner is not None:
            of_bias[number if of_bias.shape[0] > 1 else 0] += inner[0].to(of_bias.dtype)
    return found, of_bias


def _with(bias: Tensor | None, extra: Tensor | None, number: int) -> Tensor | None:
    if extra is None:
        return bias
    own = extra[number if extra.shape[0] > 1 else 0].float()
    return own if bias is None else bias + own


def _for(bias: Tensor | None, query: Tensor) -> Tensor | None:
    return None if bias is None else bias.unsqueeze(0).expand(*query.shape[:-1], -1)


@kernel("_flash_attention_forward")
def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> tuple[Tensor, ...]:
    sequences = list(_sequences(query, key, cum_seq_q, cum_seq_k, seqused_k))
    how = {
        "causal": _FROM_BOTTOM_RIGHT if is_causal else 0, "window": (window_size_left, window_size_right),
        "slopes": alibi_slopes, "dropout": dropout_p, "scale": scale,
    }  # fmt: skip
    out, sums, state = _run(query, key, value, sequences, how)
    kept = torch.stack(sums) if cum_seq_q is None else torch.cat(sums, -1)
    return out, kept, *attention._as_pair(state), query.new_empty(0)


@kernel("_flash_attention_forward_no_dropout_inplace")
def _flash_inplace(out: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    made, sums, *_ = _flash(*args, **kwargs)
    out.copy_(made)
    return sums


@kernel("_flash_attention_backward")
def _flash_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: Tensor,
    unused: Tensor,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> tuple[Tensor, ...]:
    sequences = list(_sequences(query, key, cum_seq_q, cum_seq_k, None))
    how = {
        "causal": _FROM_BOTTOM_RIGHT if is_causal else 0, "window": (window_size_left, window_size_right),
        "dropout": dropout_p, "scale": scale,
        "state": attention._pair(rng_state, unused) if dropout_p > 0 else (0, 0),
    }  # fmt: skip
    packed = cum_seq_q is not None
    sums = [logsumexp[:, at[-1]] for at, _ in sequences] if packed else list(logsumexp)
    return tuple(_back(grad_out, [query, key, value, out], sums, sequences, how)[0])


@kernel("_efficient_attention_forward")
def _efficient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    dropout_p: float,
    custom_mask_type: int,
    compute_log_sumexp: bool = False,
    *,
    scale: float | None = None,
    seqlen_k: Tensor | None = None,
    window_size: int | None = None,
) -> tuple[Any, ...]:
    sequences = list(_sequences(query, key, cu_seqlens_q, cu_seqlens_k, seqlen_k))
    how = {
        "causal": custom_mask_type, "window": (window_size, None), "bias": bias, "dropout": dropout_p,
        "scale": scale,
    }  # fmt: skip
    out, sums, state = _run(query, key, value, sequences, how)
    longest = max((one.shape[-1] for one in sums), default=0) if max_seqlen_q is None else max_seqlen_q
    rows = -(-longest // attention._ROWS) * attention._ROWS if compute_log_sumexp else 0
    kept = torch.full((len(sums), query.shape[-2], rows), float("inf"))
    for number, one in enumerate(sums if rows else ()):
        kept[number, :, : one.shape[-1]] = one
    columns = key.shape[1] if max_seqlen_k is None else max_seqlen_k
    return out, kept, *attention._as_two(state), longest, columns


@kernel("_efficient_attention_backward")
def _efficient_backward(
    grad_out_: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    out: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    logsumexp: Tensor,
    dropout_p: float,
    philox_seed: Tensor,
    philox_offset: Tensor,
    custom_mask_type: int,
    bias_requires_grad: bool,
    *,
    scale: float | None = None,
    num_splits_key: int | None = None,
    window_size: int | None = None,
    shared_storage_dqdkdv: bool = False,
) -> tuple[Tensor | None, ...]:
    sequences = list(_sequences(query, key, cu_seqlens_q, cu_seqlens_k, None))
    how = {
        "causal": custom_mask_type, "window": (window_size, None), "bias": bias, "dropout": dropout_p,
        "scale": scale, "state": attention._pair(philox_seed, philox_offset) if dropout_p > 0 else (0, 0),
        "learns": bias_requires_grad,
    }  # fmt: skip
    sums = [one[:, : query[at].shape[0]] for one, (at, _) in zip(logsumexp, sequences, strict=True)]
    made, of_bias = _back(grad_out_, [query, key, value, out], sums, sequences, how)
    return (*made, of_bias)


# -- cuDNN's, which has both layouts -------------------------------------------------------------------


@kernel("_cudnn_attention_forward")
def _cudnn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    if cum_seq_q is None:
        return attention._cudnn(
            query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal, scale=scale
        )
    sequences = list(_sequences(query, key, cum_seq_q, cum_seq_k, None))
    how = {
        "causal": _FROM_TOP_LEFT if is_causal else 0, "window": (None, None), "dropout": dropout_p,
        "scale": scale,
    }  # fmt: skip
    out, sums, state = _run(query, key, value, sequences, how)
    kept = torch.cat(sums, -1).t().unsqueeze(-1)
    return out, kept, cum_seq_q, cum_seq_k, max_q, max_k, *attention._as_two(state), None


@kernel("_cudnn_attention_backward")
def _cudnn_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    attn_bias: Tensor | None,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    if cum_seq_q is None:
        return attention._cudnn_backward(
            grad_out, query, key, value, out, logsumexp, philox_seed, philox_offset, attn_bias, None, None,
            max_q, max_k, dropout_p, is_causal, scale=scale,
        )  # fmt: skip
    sequences = list(_sequences(query, key, cum_seq_q, cum_seq_k, None))
    how = {
        "causal": _FROM_TOP_LEFT if is_causal else 0, "window": (None, None), "dropout": dropout_p,
        "scale": scale, "state": attention._pair(philox_seed, philox_offset) if dropout_p > 0 else (0, 0),
    }  # fmt: skip
    sums = [logsumexp.squeeze(-1).t()[:, at[-1]] for at, _ in sequences]
    return tuple(_back(grad_out, [query, key, value, out], sums, sequences, how)[0])
