"""Operators whose results have as many elements as values say: how many there are without values.

Of a mask with a probability `p` as many elements are chosen as are to be expected, and at least one unless
there can be none. Whole numbers are all there within their bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from gapless import trees
from gapless.emulation.dry import filling
from gapless.emulation.dry.guesses.guess import Guess, between
from gapless.emulation.dry.plain import plain_sizes
from gapless.emulation.dry.shapes import DISCRETE
from gapless.torch_internals import DisableTorchDispatch, DisableTorchFunction

Tensor = torch.Tensor
Sized = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]
_MASKS = (torch.bool, torch.uint8)


def settled(
    values: Any, kind: Any, compute: Any, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The result of the operator of that `Kind`, some of whose arguments have no values of their own.

    What it selects by, or counts, gets values first where it is not too large: all that was computed from it,
    and all that will be, agrees with the size then.
    """
    function = _SIZED.get(kind.base)
    masks = _masks(kind, args)
    for mask in masks:
        _settle(values, mask)
    counted = args[0] if not masks and args and isinstance(args[0], Tensor) else None
    record = None if counted is None else values.of(counted)
    if record is not None and counted is not None:
        if function is not None and values.reads.said_here(record):
            return function(values, kind, args, kwargs)
        if counted.dtype in DISCRETE and not record.exact:
            values.fill(counted)
    tensors = list(trees.tensors((args, kwargs)))
    records = [values.of(one) for one in tensors]
    if any(one is not None and not (one.exact or one.filled) for one in records):
        return _unsettled(values, kind, compute, index, args, kwargs)
    out = values._computed(kind, compute, index, args, kwargs, tensors, records)
    if record is not None and counted is not None and function is not None and not record.exact:
        first = out if isinstance(out, Tensor) else out[0]
        dim = _dimension(kind, args)
        among = counted.numel() if dim is None else counted.shape[dim]
        size = first.shape[0 if dim is None else dim]
        least = kind.arguments(args, kwargs)[2:3] if kind.base == "bincount" else []
        if [size] != least:  # else it is the size that the script asks for
            values.reads.size(record, size, max(among, size))
    return out


def _unsettled(values: Any, kind: Any, compute: Any, index: int, args: Any, kwargs: dict[str, Any]) -> Any:
    function = _SIZED.get(kind.base)
    found = NotImplemented if function is None else function(values, kind, args, kwargs)
    return values.unknown(kind, compute, index, args, kwargs) if found is NotImplemented else found


def _masks(kind: Any, args: tuple[Any, ...]) -> list[Tensor]:
    """The arguments whose elements that are not zero are selected."""
    if kind.base == "nonzero":
        return [args[0]]
    if kind.base == "masked_select":
        return [args[1]]
    given = args[1] if kind.base == "index" else ()
    return [one for one in given if one is not None and one.dtype in _MASKS]


def _settle(values: Any, mask: Tensor) -> None:
    """Give a mask values of which as many are true as are to be expected, or as the user says."""
    record = values.of(mask)
    if record is None or record.exact or mask.dtype not in DISCRETE:
        return
    if 0 in mask.stride():  # expanded: each element of memory once
        mask = mask[tuple(slice(None) if by else slice(1) for by in mask.stride())]
    count = None
    if not record.filled:
        count = _expected(mask, record)
        if not values.fill(mask):
            return
    with DisableTorchDispatch(), DisableTorchFunction():
        there = int(torch.count_nonzero(mask))
        wanted = int(values.reads.size(record, there if count is None else count, mask.numel()))
        if wanted != there:
            _turn(mask, wanted - there)


def _turn(mask: Tensor, more: int) -> None:
    """Make so many more elements true, or fewer, those that are the first to be turned around."""
    places = (mask == 0 if more > 0 else mask != 0).nonzero()[: abs(more)]
    mask[tuple(places.unbind(1))] = more > 0


def _expected(mask: Tensor, record: Guess) -> int:
    """How many elements of `mask` are not zero, as its record says; at least one, unless none can be."""
    if mask.dtype is torch.bool or (record.low >= 0 and record.high <= 1):
        p = min(1.0, max(0.0, record.mean))
    else:
        p = 0.0 if record.mean == record.spread == 0 else 1.0
    return min(mask.numel(), max(1 if p > 0 else 0, round(p * mask.numel())))


def _chosen(values: Any, mask: Tensor) -> int:
    """How many elements of `mask` are not zero."""
    record = values.of(mask)
    if record is None or record.filled:
        return int(torch.count_nonzero(mask))
    each = math.prod(n for n, by in zip(mask.shape, mask.stride(), strict=True) if by == 0)
    if each > 1:  # an expanded mask: each of its elements chooses so many
        return each * _chosen(values, mask[tuple(slice(None) if by else slice(1) for by in mask.stride())])
    count = _expected(mask, record)
    return count if record.exact else int(values.reads.size(record, count, mask.numel()))


def _made(values: Any, kind: Any, args: Any, kwargs: Any, size: Any, dtype: Any, position: int = 0) -> Tensor:
    stride = torch.empty(size, device="meta").stride()
    out = filling.untouched(tuple(size), stride, dtype)
    values.mark(out, values._guessed(kind, args, kwargs, out, position))
    return out


def _nonzero(values: Any, kind: Any, args: Any, kwargs: Any) -> Any:
    count = _chosen(values, args[0])
    out = filling.untouched((count, args[0].dim()), (1, max(1, count)), torch.int64)
    values.mark(out, values._guessed(kind, args, kwargs, out, 0))
    return out


def _masked_select(values: Any, kind: Any, args: Any, kwargs: Any) -> Any:
    tensor, mask = args[:2]
    share = torch.broadcast_shapes(tensor.shape, mask.shape)
    count = _chosen(values, mask) * (math.prod(share) // max(1, mask.numel()))
    return _made(values, kind, args, kwargs, (count,), tensor.dtype)


def _index(values: Any, kind: Any, args: Any, kwargs: Any) -> Any:
    indices = args[1]
    if not any(one is not None and one.dtype in _MASKS for one in indices):
        return NotImplemented
    found: list[Any] = []
    for one in indices:
        if one is not None and one.dtype in _MASKS:
            count = _chosen(values, one)
            found += [torch.empty(count, dtype=torch.int64, device="meta")] * one.dim()
        else:
            found.append(None if one is None else torch.empty(one.shape, dtype=one.dtype, device="meta"))
    tensor = args[0]
    meta = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
    with plain_sizes():
        out = kind.func(meta, found)
    made = filling.untouched(tuple(out.size()), out.stride(), out.dtype)
    values.mark(made, values._guessed(kind, args, kwargs, made, 0))
    return made


def _bincount(values: Any, kind: Any, args: Any, kwargs: Any) -> Any:
    arguments = [*kind.arguments(args, kwargs), None, 0]
    tensor, weights, least = arguments[0], arguments[1], arguments[2] or 0
    guess = values.guess_of(tensor)
    most = int(guess.high) + 1 if guess is not None and math.isfinite(guess.high) else 0
    count = max(least, most) if least or most else tensor.numel()
    if values.of(tensor) is not None and not least:
        count = int(values.reads.size(guess, count, count))
    dtype = torch.int64
    if weights is not None:
        dtype = weights.dtype if weights.dtype is torch.float32 else torch.float64
    return _made(values, kind, args, kwargs, (count,), dtype)


def _distinct(tensor: Tensor, guess: Guess | None, among: int) -> int:
    if guess is None or tensor.is_floating_point() or not math.isfinite(guess.high - guess.low):
        return among
    return max(1, min(among, int(guess.high - guess.low + 1))) if among else 0


def _dimension(kind: Any, args: tuple[Any, ...]) -> int | None:
    """The dimension along which there are fewer elements; None where it is all of them."""
    dim = args[1] if kind.base in ("unique_dim", "unique_dim_consecutive") else None
    return None if dim is None else int(dim) % args[0].dim()


def _unique(values: Any, kind: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    dim = _dimension(kind, args)
    among = tensor.numel() if dim is None else tensor.shape[dim]
    guess = values.guess_of(tensor)
    count = int(values.reads.size(guess, _distinct(tensor, guess, among), among))
    size = (
        [count]
        if dim is None
        else [count if n == dim % tensor.dim() else s for n, s in enumerate(tensor.shape)]
    )
    first = _made(values, kind, args, kwargs, size, tensor.dtype)
    inverse = _made(values, kind, args, kwargs, tensor.shape if dim is None else (among,), torch.int64, 1)
    values.mark(inverse, between(0, max(0, count - 1)))
    counts = _made(values, kind, args, kwargs, (count,), torch.int64, 2)
    values.mark(counts, Guess(among / max(1, count), 1.0, 1.0, among))
    return first, inverse, counts


def _repeat_interleave(values: Any, kind: Any, args: Any, kwargs: Any) -> Any:
    asked = kwargs.get("output_size")
    repeats = args[0]
    if asked is None:
        record = values.of(repeats)
        if record is None:
            asked = int(repeats.sum())
        else:
            asked = int(
                values.reads.size(record, max(1, round(record.mean * repeats.numel())), repeats.numel())
            )
    out = filling.untouched((asked,), (1,), torch.int64)
    values.mark(out, between(0, max(0, repeats.numel() - 1)))
    return out


_SIZED: dict[str, Sized] = {
    "nonzero": _nonzero,
    "masked_select": _masked_select,
    "index": _index,
    "bincount": _bincount,
    "_unique2": _unique,
    "unique_dim": _unique,
    "unique_consecutive": _unique,
    "unique_dim_consecutive": _unique,
    "repeat_interleave": _repeat_interleave,
}
