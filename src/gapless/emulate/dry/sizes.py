"""Operators whose results have as many elements as values say: how many there are without values.

Of a mask with a probability `p` as many elements are chosen as are to be expected, and at least one unless
there can be none. Whole numbers are all there within their bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from gapless.emulate.dry import filling
from gapless.emulate.dry.guess import Guess, between
from gapless.emulate.dry.plain import plain_sizes

Tensor = torch.Tensor
Sized = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]
_MASKS = (torch.bool, torch.uint8)


def sized(values: Any, kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the operator of that `Kind` gives; NotImplemented where nothing is known of it."""
    function = _SIZED.get(kind.base)
    return NotImplemented if function is None else function(values, kind, args, kwargs)


def _chosen(values: Any, mask: Tensor) -> int:
    """How many elements of `mask` are not zero."""
    record = values.of(mask)
    if record is None:
        return int(torch.count_nonzero(mask))
    each = math.prod(n for n, by in zip(mask.shape, mask.stride(), strict=True) if by == 0)
    if each > 1:  # an expanded mask: each of its elements chooses so many
        return each * _chosen(values, mask[tuple(slice(None) if by else slice(1) for by in mask.stride())])
    if record.filled:
        return int(values.reads.size(record, int(torch.count_nonzero(mask)), mask.numel()))
    if mask.dtype is torch.bool or (record.low >= 0 and record.high <= 1):
        p = min(1.0, max(0.0, record.mean))
    else:
        p = 0.0 if record.mean == record.spread == 0 else 1.0
    count = min(mask.numel(), max(1 if p > 0 else 0, round(p * mask.numel())))
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


def _unique(values: Any, kind: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    dim = args[1] if kind.base in ("unique_dim", "unique_dim_consecutive") else None
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
