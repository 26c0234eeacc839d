"""Selections with a bound: as many elements as the host says, and on the device how many there are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gapless.ops.masks import leading, require_bool


class Bounded(NamedTuple):
    """A selection of fixed size.

    `values`: what was found, in front, then fill. `number`: how many there are, a 0-dim int64 tensor on the
    device; more than there is room for shows as a number above the size.
    """

    values: Tensor
    number: Tensor


def compact(x: Tensor, mask: Tensor, *, size: int | None = None, fill_value: float = 0) -> Bounded:
    """What `mask` selects of `x`, in order and in front, then `fill_value`: (size, *rest) and the number.

    `mask` has the leading dimensions of `x`, as in ``x[mask]``, and `rest` are the others. `size` is a bound
    on how many are selected: by default all of the mask, which holds any selection; of more than `size` the
    first are taken.

    Replaces::

        kept = boxes[scores > 0.5]
        kept, number = ops.compact(boxes, scores > 0.5, size=100)

    Gradients flow to what is selected, as with ``x[mask]``. Without `size` nothing becomes smaller: where a
    mask is very sparse and no bound is known, ``x[mask]`` can win.

    Raises:
        IndexError: the mask has not the leading dimensions of `x`.
        ValueError: the mask is not of dtype bool, or `size` is negative.
    """
    leading(mask, x.shape)
    flat = mask.flatten()
    rows = x.reshape(flat.shape[0], *x.shape[mask.dim() :])
    at, count = positions(flat, flat.shape[0] if size is None else size)
    return Bounded(take(rows, at, fill_value), count)


def masked_select(x: Tensor, mask: Tensor, *, size: int, fill_value: float = 0) -> Bounded:
    """``torch.masked_select`` with a bound: values (size,) and the number. `x` and `mask` broadcast.

    Replaces::

        values = x.masked_select(mask)
        values, number = ops.masked_select(x, mask, size=100)
    """
    require_bool(mask)
    x, mask = torch.broadcast_tensors(x, mask)
    return compact(x.reshape(-1), mask.reshape(-1), size=size, fill_value=fill_value)


def nonzero(x: Tensor, *, size: int, fill_value: int = -1) -> Bounded:
    """``torch.nonzero`` with a bound: indices (size, dimensions of `x`) in order, and their number.

    Replaces::

        where = torch.nonzero(x)
        where, number = ops.nonzero(x, size=100)

    Rows beyond the number hold `fill_value`, as in ``torch.nonzero_static``, which does not tell the number.
    """
    flat = (x if x.dtype == torch.bool else x != 0).flatten()
    at, count = positions(flat, size)
    valid, rest, columns = at < flat.shape[0], at, []
    if x.dim() == 0:
        return Bounded(at.new_empty(size, 0), count)
    for length in reversed(x.shape[1:]):
        columns.append(rest % max(length, 1))
        rest = rest // max(length, 1)
    columns.append(rest)
    return Bounded(torch.where(valid.unsqueeze(1), torch.stack(columns[::-1], 1), fill_value), count)


def argwhere(x: Tensor, *, size: int, fill_value: int = -1) -> Bounded:
    """``torch.argwhere`` with a bound: the same as :func:`nonzero`.

    Replaces::

        where = torch.argwhere(x)
        where, number = ops.argwhere(x, size=100)
    """
    return nonzero(x, size=size, fill_value=fill_value)


def repeat_interleave(
    x: Tensor, repeats: Tensor | int, dim: int | None = None, *, output_size: int, fill_value: float = 0
) -> Bounded:
    """``torch.repeat_interleave`` with a bound `output_size` on the length, and the length itself as number.

    `repeats` holds a number that is not negative for each element along `dim` (of the flattened `x` without
    `dim`), or one for all. Beyond the number stands `fill_value`.

    Replaces::

        rows = x.repeat_interleave(lengths, dim=0)
        rows, number = ops.repeat_interleave(x, lengths, dim=0, output_size=512)

    Where the host knows the exact length, ``torch.repeat_interleave(..., output_size=)`` is enough.

    Raises:
        ValueError: `repeats` is neither one number nor as many as there are elements along `dim`.
    """
    if dim is None:
        x, dim = x.flatten(), 0
    if not isinstance(repeats, Tensor):
        repeats = torch.full((1,), repeats, device=x.device)
    if repeats.dim() > 1 or repeats.numel() not in (1, x.shape[dim]):
        raise ValueError(
            f"repeats of shape {tuple(repeats.shape)} do not fit a dimension of length {x.shape[dim]}: "
            "give one number, or one per element"
        )
    ends = repeats.reshape(-1).expand(x.shape[dim]).cumsum(0)
    # An element of the result comes from the row before which as many rows have ended.
    ended = torch.zeros(output_size + 1, dtype=torch.long, device=x.device)
    ended = ended.scatter_add(0, ends.clamp_max(output_size), torch.ones_like(ends))
    at = ended.cumsum(0)[:output_size]
    number = ends[-1] if x.shape[dim] else ends.sum()
    return Bounded(take(x.transpose(0, dim), at, fill_value).transpose(0, dim), number)


def positions(mask: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Where the first `size` true elements of `mask` (n,) are, then n; and how many there are."""
    if size < 0:
        raise ValueError(f"expected a non-negative size, but got {size}")
    if mask.shape[0] == 0:
        none = torch.zeros((), dtype=torch.long, device=mask.device)
        return torch.zeros(size, dtype=torch.long, device=mask.device), none
    length, counted = mask.shape[0], mask.cumsum(0)
    # What is not chosen, and what there is no room for, goes to a slot behind the last, which is cut off.
    slots = torch.where(mask, counted - 1, size).clamp_max(size)
    at = torch.full((size + 1,), length, device=mask.device)
    at = at.scatter(0, slots, torch.arange(length, device=mask.device))
    return at[:size], counted[-1]


def take(rows: Tensor, at: Tensor, fill_value: float) -> Tensor:
    """The rows (n, ...) at positions `at` (k,), `fill_value` where a position is n."""
    length = rows.shape[0]
    if length == 0:
        return rows.new_full((at.shape[0], *rows.shape[1:]), fill_value)
    found = rows.index_select(0, at.clamp_max(length - 1))
    valid = (at < length).view(-1, *(1,) * (rows.dim() - 1))
    return torch.where(valid, found, torch.full((), fill_value, dtype=rows.dtype, device=rows.device))
