"""Operators whose result sizes depend on values: how many elements there are without values.

A mask with probability `p` selects the expected number of elements, and at least one if any is possible. Of
integers every value within their bounds is taken to occur.
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
SizedRule = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]
_MASK_TYPES = (torch.bool, torch.uint8)


def run_sized(
    values: Any, kind: Any, compute: Any, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run an operator with a value-dependent result size, some of whose arguments have no values.

    Masks and counted tensors get values first if they are not too large, so that all results computed from
    them agree with the size.
    """
    function = _SIZED_RULES.get(kind.base)
    masks = _selecting_masks(kind, args)
    for mask in masks:
        _settle_mask(values, mask)
    counted = args[0] if not masks and args and isinstance(args[0], Tensor) else None
    record = None if counted is None else values.record_of(counted)
    if record is not None and counted is not None:
        if function is not None and values.reads.has_user_size(record):
            return function(values, kind, args, kwargs)
        if counted.dtype in DISCRETE and not record.exact:
            values.fill(counted)
    tensors = list(trees.tensors((args, kwargs)))
    records = [values.record_of(tensor) for tensor in tensors]
    if any(record is not None and not (record.exact or record.filled) for record in records):
        return _run_without_values(values, kind, compute, index, args, kwargs)
    out = values._compute(kind, compute, index, args, kwargs, tensors, records)
    if record is not None and counted is not None and function is not None and not record.exact:
        first = out if isinstance(out, Tensor) else out[0]
        dim = _unique_dimension(kind, args)
        among = counted.numel() if dim is None else counted.shape[dim]
        size = first.shape[0 if dim is None else dim]
        least = kind.arguments(args, kwargs)[2:3] if kind.base == "bincount" else []
        if [size] != least:  # else the script requests that size
            values.reads.size(record, size, max(among, size))
    return out


def _run_without_values(
    values: Any, kind: Any, compute: Any, index: int, args: Any, kwargs: dict[str, Any]
) -> Any:
    function = _SIZED_RULES.get(kind.base)
    result = NotImplemented if function is None else function(values, kind, args, kwargs)
    return values.run_shaped(kind, compute, index, args, kwargs) if result is NotImplemented else result


def _selecting_masks(kind: Any, args: tuple[Any, ...]) -> list[Tensor]:
    """Return the arguments whose nonzero elements select."""
    if kind.base == "nonzero":
        return [args[0]]
    if kind.base == "masked_select":
        return [args[1]]
    indices = args[1] if kind.base == "index" else ()
    return [index for index in indices if index is not None and index.dtype in _MASK_TYPES]


def _settle_mask(values: Any, mask: Tensor) -> None:
    """Give a mask values with the expected number of true ones, or the user's number."""
    record = values.record_of(mask)
    if record is None or record.exact or mask.dtype not in DISCRETE:
        return
    if 0 in mask.stride():  # expanded: each element of memory once
        mask = mask[tuple(slice(None) if by else slice(1) for by in mask.stride())]
    count = None
    if not record.filled:
        count = _expected_count(mask, record)
        if not values.fill(mask):
            return
    with DisableTorchDispatch(), DisableTorchFunction():
        current = int(torch.count_nonzero(mask))
        wanted = int(values.reads.size(record, current if count is None else count, mask.numel()))
        if wanted != current:
            _flip_elements(mask, wanted - current)


def _flip_elements(mask: Tensor, more: int) -> None:
    """Make `more` further elements of `mask` true, or ``-more`` false, from the front."""
    places = (mask == 0 if more > 0 else mask != 0).nonzero()[: abs(more)]
    mask[tuple(places.unbind(1))] = more > 0


def _expected_count(mask: Tensor, record: Guess) -> int:
    """Return the expected number of nonzero elements by the record; at least one if any is possible."""
    if mask.dtype is torch.bool or (record.low >= 0 and record.high <= 1):
        p = min(1.0, max(0.0, record.mean))
    else:
        p = 0.0 if record.mean == record.spread == 0 else 1.0
    return min(mask.numel(), max(1 if p > 0 else 0, round(p * mask.numel())))


def _count_nonzero(values: Any, mask: Tensor) -> int:
    """Return the number of nonzero elements of `mask`, counted or assumed."""
    record = values.record_of(mask)
    if record is None or record.filled:
        return int(torch.count_nonzero(mask))
    each = math.prod(n for n, by in zip(mask.shape, mask.stride(), strict=True) if by == 0)
    if each > 1:  # an expanded mask: each element in memory selects so many
        return each * _count_nonzero(
            values, mask[tuple(slice(None) if by else slice(1) for by in mask.stride())]
        )
    count = _expected_count(mask, record)
    return count if record.exact else int(values.reads.size(record, count, mask.numel()))


def _make_result(
    values: Any, kind: Any, args: Any, kwargs: Any, size: Any, dtype: Any, position: int = 0
) -> Tensor:
    stride = torch.empty(size, device="meta").stride()
    out = filling.untouched_tensor(tuple(size), stride, dtype)
    values.mark(out, values._guess_result(kind, args, kwargs, out, position))
    return out


def _nonzero(values: Any, kind: Any, args: Any, kwargs: Any) -> Any:
    count = _count_nonzero(values, args[0])
    out = filling.untouched_tensor((count, args[0].dim()), (1, max(1, count)), torch.int64)
    values.mark(out, values._guess_result(kind, args, kwargs, out, 0))
    return out


def _masked_select(values: Any, kind: Any, args: Any, kwargs: Any) -> Any:
    tensor, mask = args[:2]
    share = torch.broadcast_shapes(tensor.shape, mask.shape)
    count = _count_nonzero(values, mask) * (math.prod(share) // max(1, mask.numel()))
    return _make_result(values, kind, args, kwargs, (count,), tensor.dtype)


def _index(values: Any, kind: Any, args: Any, kwargs: Any) -> Any:
    indices = args[1]
    if not any(index is not None and index.dtype in _MASK_TYPES for index in indices):
        return NotImplemented
    metas: list[Any] = []
    for index in indices:
        if index is not None and index.dtype in _MASK_TYPES:
            count = _count_nonzero(values, index)
            metas += [torch.empty(count, dtype=torch.int64, device="meta")] * index.dim()
        else:
            metas.append(
                None if index is None else torch.empty(index.shape, dtype=index.dtype, device="meta")
            )
    tensor = args[0]
    meta = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
    with plain_sizes():
        out = kind.func(meta, metas)
    result = filling.untouched_tensor(tuple(out.size()), out.stride(), out.dtype)
    values.mark(result, values._guess_result(kind, args, kwargs, result, 0))
    return result


def _bincount(values: Any, kind: Any, args: Any, kwargs: Any) -> Any:
    arguments = [*kind.arguments(args, kwargs), None, 0]
    tensor, weights, least = arguments[0], arguments[1], arguments[2] or 0
    guess = values.guess_of(tensor)
    bound = int(guess.high) + 1 if guess is not None and math.isfinite(guess.high) else 0
    count = max(least, bound) if least or bound else tensor.numel()
    if values.record_of(tensor) is not None and not least:
        count = int(values.reads.size(guess, count, count))
    dtype = torch.int64
    if weights is not None:
        dtype = weights.dtype if weights.dtype is torch.float32 else torch.float64
    return _make_result(values, kind, args, kwargs, (count,), dtype)


def _count_distinct(tensor: Tensor, guess: Guess | None, among: int) -> int:
    if guess is None or tensor.is_floating_point() or not math.isfinite(guess.high - guess.low):
        return among
    return max(1, min(among, int(guess.high - guess.low + 1))) if among else 0


def _unique_dimension(kind: Any, args: tuple[Any, ...]) -> int | None:
    """Return the dimension along which unique slices are taken; None for unique elements."""
    dim = args[1] if kind.base in ("unique_dim", "unique_dim_consecutive") else None
    return None if dim is None else int(dim) % args[0].dim()


def _unique(values: Any, kind: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    dim = _unique_dimension(kind, args)
    among = tensor.numel() if dim is None else tensor.shape[dim]
    guess = values.guess_of(tensor)
    count = int(values.reads.size(guess, _count_distinct(tensor, guess, among), among))
    size = (
        [count]
        if dim is None
        else [count if n == dim % tensor.dim() else s for n, s in enumerate(tensor.shape)]
    )
    first = _make_result(values, kind, args, kwargs, size, tensor.dtype)
    inverse = _make_result(
        values, kind, args, kwargs, tensor.shape if dim is None else (among,), torch.int64, 1
    )
    values.mark(inverse, between(0, max(0, count - 1)))
    counts = _make_result(values, kind, args, kwargs, (count,), torch.int64, 2)
    values.mark(counts, Guess(among / max(1, count), 1.0, 1.0, among))
    return first, inverse, counts


def _repeat_interleave(values: Any, kind: Any, args: Any, kwargs: Any) -> Any:
    size = kwargs.get("output_size")
    repeats = args[0]
    if size is None:
        record = values.record_of(repeats)
        if record is None:
            size = int(repeats.sum())
        else:
            size = int(
                values.reads.size(record, max(1, round(record.mean * repeats.numel())), repeats.numel())
            )
    out = filling.untouched_tensor((size,), (1,), torch.int64)
    values.mark(out, between(0, max(0, repeats.numel() - 1)))
    return out


_SIZED_RULES: dict[str, SizedRule] = {
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
