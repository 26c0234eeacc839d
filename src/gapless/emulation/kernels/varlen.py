"""Attention over sequences laid behind each other, and the kernels below `scaled_dot_product_attention`.

They take (batch, rows, heads, width), or with cumulative lengths (all rows, heads, width), a window of
columns around each row, and slopes that make far columns count less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from gapless.emulation.kernels import attention
from gapless.emulation.kernels.calls import Call, Setting, as_pair, as_two, attends, state_now

Tensor = torch.Tensor
_Slice = tuple[Any, Any]
_FROM_TOP_LEFT, _FROM_BOTTOM_RIGHT = 1, 2
"""Causal masks of the memory-efficient kernel, by the corner in which they begin."""


def _sequences(call: Call) -> Iterator[_Slice]:
    """Indices of each sequence's rows and columns, along the first two dimensions."""
    lengths = None if call.used is None else call.used.tolist()
    if call.ends_q is None or call.ends_k is None:
        for batch in range(call.query.shape[0]):
            last = call.key.shape[1] if lengths is None else lengths[batch]
            yield (batch, slice(None)), (batch, slice(0, last))
        return
    rows, columns = call.ends_q.tolist(), call.ends_k.tolist()
    packed = call.query.dim() == 4  # (1, all rows, heads, width)
    for number in range(len(rows) - 1):
        end = columns[number + 1] if lengths is None else columns[number] + lengths[number]
        at, of = slice(rows[number], rows[number + 1]), slice(columns[number], end)
        yield ((0, at), (0, of)) if packed else ((at,), (of,))


def _bias(call: Call, number: int, rows: int, columns: int) -> Tensor | None:
    """What is added to the scores (heads or 1, rows, columns) of a sequence; None where it is nothing."""
    hidden = _hidden(call, rows, columns)
    if call.bias is None:
        return hidden
    own = call.bias[number if call.bias.shape[0] > 1 else 0].float()
    return own if hidden is None else hidden + own


def _hidden(call: Call, rows: int, columns: int) -> Tensor | None:
    """Minus infinity where a row does not see a column, less what slopes take off far ones."""
    left, right = (-1 if side is None else side for side in (call.left, call.right))
    if not call.causal and left < 0 and right < 0 and call.slopes is None:
        return None
    shift = 0 if call.causal == _FROM_TOP_LEFT else columns - rows
    distance = torch.arange(columns) - (torch.arange(rows).unsqueeze(-1) + shift)
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if call.causal:
        hidden |= distance > 0
    if left >= 0:
        hidden |= distance < -left
    if right >= 0 and not call.causal:
        hidden |= distance > right
    bias = torch.zeros(hidden.shape).masked_fill(hidden, float("-inf")).unsqueeze(0)
    if call.slopes is not None:
        bias = bias - call.slopes.float().reshape(-1, 1, 1) * distance.abs()
    return bias


def _heads_first(tensor: Tensor) -> Tensor:
    """(rows, heads, width) as (1, heads, rows, width)."""
    return tensor.transpose(0, 1).unsqueeze(0)


def _setting(call: Call, number: int, query: Tensor, key: Tensor) -> Setting:
    """For one sequence, of which these are query and key (1, heads, rows, width)."""
    bias = _bias(call, number, query.shape[2], key.shape[2])
    if bias is not None:
        bias = bias.unsqueeze(0).expand(*query.shape[:-1], -1)
    return Setting(bias, call.dropout, False, call.scale, call.state)


def _run(call: Call) -> tuple[Tensor, list[Tensor], tuple[int, int]]:
    """The result, the sums of each sequence (heads, rows), and the generator's state."""
    query, key, value = call.tensors
    state = state_now(call.dropout)
    out = query.new_zeros(*query.shape[:-1], value.shape[-1])
    sums = []
    for number, (at, of) in enumerate(_sequences(call)):
        one, two, three = (_heads_first(part) for part in (query[at], key[of], value[of]))
        made, lengths = attention.forward(one, two, three, _setting(call, number, one, two))
        out[at] = made[0].transpose(0, 1).to(out.dtype)
        sums.append(lengths[0])
    return out, sums, state


def _back(call: Call, sums: list[Tensor]) -> tuple[list[Tensor], Tensor | None]:
    """Gradients of query, key, value, and of a bias that learns; `sums` are those of each sequence."""
    query, key, value = call.tensors
    found = [torch.zeros_like(one) for one in call.tensors]
    of_bias = torch.zeros_like(call.bias) if call.bias is not None and call.bias_learns else None
    for number, (at, of) in enumerate(_sequences(call)):
        parts = (call.gradient[at], query[at], key[of], value[of], call.out[at])
        up, one, two, three, made = (_heads_first(part) for part in parts)
        setting = _setting(call, number, one, two)
        own = sums[number].unsqueeze(0)
        *inner, of_own = attention.backward(up, one, two, three, made, own, setting, of_bias is not None)
        for whole, where, part in zip(found, (at, of, of), inner, strict=True):
            whole[where] += part[0].transpose(0, 1).to(whole.dtype)
        if of_bias is not None and of_own is not None:
            of_bias[number if of_bias.shape[0] > 1 else 0] += of_own[0].to(of_bias.dtype)
    return found, of_bias


def _masked(call: Call, corner: int) -> Call:
    """`call` with the corner in which its mask begins, where it has one."""
    return replace(call, causal=corner if call.causal else 0)


@attends("_flash_attention_forward")
def _flash(call: Call) -> tuple[Tensor, ...]:
    out, sums, state = _run(_masked(call, _FROM_BOTTOM_RIGHT))
    kept = torch.stack(sums) if call.ends_q is None else torch.cat(sums, -1)
    return out, kept, *as_pair(state), call.query.new_empty(0)


@attends("_flash_attention_forward_no_dropout_inplace")
def _flash_inplace(call: Call) -> Tensor:
    made, sums, *_ = _flash(call)
    call.out.copy_(made)
    return sums


@attends("_flash_attention_backward")
def _flash_backward(call: Call) -> tuple[Tensor, ...]:
    packed = call.ends_q is not None
    sums = [call.logsumexp[:, at[-1]] for at, _ in _sequences(call)] if packed else list(call.logsumexp)
    return tuple(_back(_masked(call, _FROM_BOTTOM_RIGHT), sums)[0])


@attends("_efficient_attention_forward")
def _efficient(call: Call) -> tuple[Any, ...]:
    out, sums, state = _run(call)
    longest = max((one.shape[-1] for one in sums), default=0) if call.longest_q is None else call.longest_q
    rows = -(-longest // attention.ROWS) * attention.ROWS if call.sums_too else 0
    kept = torch.full((len(sums), call.query.shape[-2], rows), float("inf"))
    for number, one in enumerate(sums if rows else ()):
        kept[number, :, : one.shape[-1]] = one
    columns = call.key.shape[1] if call.longest_k is None else call.longest_k
    return out, kept, *as_two(state), longest, columns


@attends("_efficient_attention_backward")
def _efficient_backward(call: Call) -> tuple[Tensor | None, ...]:
    pairs = zip(call.logsumexp, _sequences(call), strict=True)
    made, of_bias = _back(call, [one[:, : call.query[at].shape[0]] for one, (at, _) in pairs])
    return (*made, of_bias)


# -- cuDNN's, which has both layouts -------------------------------------------------------------------


@attends("_cudnn_attention_forward")
def _cudnn(call: Call) -> tuple[Any, ...]:
    if call.ends_q is None:
        return attention.cudnn(call)
    out, sums, state = _run(replace(_masked(call, _FROM_TOP_LEFT), bias=None))
    kept = torch.cat(sums, -1).t().unsqueeze(-1)
    lengths = call.ends_q, call.ends_k, call.longest_q, call.longest_k
    return out, kept, *lengths, *as_two(state), None


@attends("_cudnn_attention_forward_no_dropout_inplace")
def _cudnn_in_place(call: Call) -> Tensor:
    out, kept, *_ = _cudnn(call)
    call.out.copy_(out)
    return kept


@attends("_cudnn_attention_backward")
def _cudnn_backward(call: Call) -> tuple[Tensor, ...]:
    if call.ends_q is None:
        return attention.cudnn_backward(call)
    sums = [call.logsumexp.squeeze(-1).t()[:, at[-1]] for at, _ in _sequences(call)]
    return tuple(_back(replace(_masked(call, _FROM_TOP_LEFT), bias=None), sums)[0])
