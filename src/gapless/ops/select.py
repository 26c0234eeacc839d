"""Selections at a fixed size, with their number on the device."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from gapless.ops.masks import expand_leading_mask, require_bool

_INDEX_DTYPES = (torch.int32, torch.int64)


class Bounded(NamedTuple):
    """A selection of fixed size.

    `values` are the selected elements, padded with the fill value. `number` is how many there are, a 0-dim
    int64 tensor on the device, which exceeds the size if not all fit. `mask` (size,) is true for the
    elements that are selected, false for padding. If the values are positions, :func:`gapless.ops.assign`
    writes to them and leaves out the padding.
    """

    values: Tensor
    number: Tensor

    @property
    def mask(self) -> Tensor:
        """Which rows of `values` are selected elements: bool (size,)."""
        return not_padding(self.values, self.number)


def compact(x: Tensor, mask: Tensor, *, size: int | None = None, fill_value: float | None = None) -> Bounded:
    """Return the elements of `x` that `mask` selects, in order, padded with `fill_value`, and their number.

    `mask` has the leading dimensions of `x`, as in ``x[mask]``; the values are (size, *rest), where `rest`
    are the others. `size` is a bound on how many are selected, by default the size of the mask; if there are
    more, the first are taken. Without `fill_value` the padding is 0, with a warning for integers, which may
    be positions or classes.

    Replaces::

        kept = boxes[scores > 0.5]
        kept, number = ops.compact(boxes, scores > 0.5, size=100)

    Gradients flow to selected elements, as with ``x[mask]``. Without `size` nothing becomes smaller: for a
    very sparse mask without a known bound, ``x[mask]`` can be faster.

    Raises:
        IndexError: the mask does not have the leading dimensions of `x`.
        ValueError: the mask is not of dtype bool, or `size` is negative.
    """
    fill_value = padding_value(fill_value, x.dtype)
    expand_leading_mask(mask, x.shape)
    flat = mask.flatten()
    rows = x.reshape(flat.shape[0], *x.shape[mask.dim() :])
    at, count = true_positions(flat, flat.shape[0] if size is None else size)
    return Bounded(take_rows(rows, at, fill_value), count)


def masked_select(x: Tensor, mask: Tensor, *, size: int, fill_value: float | None = None) -> Bounded:
    """Return ``torch.masked_select`` at a fixed size: values (size,) and their number. Both broadcast.

    The padding is as in :func:`compact`.

    Replaces::

        values = x.masked_select(mask)
        values, number = ops.masked_select(x, mask, size=100)
    """
    fill_value = padding_value(fill_value, x.dtype)
    require_bool(mask)
    x, mask = torch.broadcast_tensors(x, mask)
    return compact(x.reshape(-1), mask.reshape(-1), size=size, fill_value=fill_value)


def nonzero(x: Tensor, *, size: int, fill_value: int | None = None) -> Bounded:
    """Return ``torch.nonzero`` at a fixed size: indices (size, dimensions of `x`) in order, and their number.

    Replaces::

        where = torch.nonzero(x)
        where, number = ops.nonzero(x, size=100)

    Rows beyond the number hold `fill_value`. Without it they hold -1, as in ``torch.nonzero_static`` (which
    does not return the number), and a warning says so: as an index -1 is the last element, and a write
    through the padding may overwrite it. ``ops.assign(y, ops.nonzero(x, size=100, fill_value=-1), values)``
    writes to no padding.
    """
    fill_value = int(padding_value(fill_value, torch.int64, -1))
    flat = (x if x.dtype == torch.bool else x != 0).flatten()
    at, count = true_positions(flat, size)
    valid, rest, columns = at < flat.shape[0], at, []
    if x.dim() == 0:
        return Bounded(at.new_empty(size, 0), count)
    for length in reversed(x.shape[1:]):
        columns.append(rest % max(length, 1))
        rest = rest // max(length, 1)
    columns.append(rest)
    return Bounded(torch.where(valid.unsqueeze(1), torch.stack(columns[::-1], 1), fill_value), count)


def argwhere(x: Tensor, *, size: int, fill_value: int | None = None) -> Bounded:
    """Return ``torch.argwhere`` at a fixed size: the same as :func:`nonzero`.

    Replaces::

        where = torch.argwhere(x)
        where, number = ops.argwhere(x, size=100)
    """
    return nonzero(x, size=size, fill_value=int(padding_value(fill_value, torch.int64, -1)))


def repeat_interleave(
    x: Tensor,
    repeats: Tensor | int,
    dim: int | None = None,
    *,
    output_size: int,
    fill_value: float | None = None,
) -> Bounded:
    """Return ``torch.repeat_interleave`` padded or cut to `output_size`, and the length as number.

    `repeats` holds a non-negative number for each element along `dim` (of the flattened `x` without `dim`),
    or one for all. Elements beyond the number are padding, as in :func:`compact`.

    Replaces::

        rows = x.repeat_interleave(lengths, dim=0)
        rows, number = ops.repeat_interleave(x, lengths, dim=0, output_size=512)

    If the host knows the exact length, ``torch.repeat_interleave(..., output_size=)`` is enough.

    Raises:
        ValueError: `repeats` is neither one number nor as many as there are elements along `dim`.
    """
    fill_value = padding_value(fill_value, x.dtype)
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
    # The source row of an element is the number of rows that end at or before it.
    ended = torch.zeros(output_size + 1, dtype=torch.long, device=x.device)
    ended = ended.scatter_add(0, ends.clamp_max(output_size), torch.ones_like(ends))
    at = ended.cumsum(0)[:output_size]
    number = ends[-1] if x.shape[dim] else ends.sum()
    return Bounded(take_rows(x.transpose(0, dim), at, fill_value).transpose(0, dim), number)


def padding_value(fill_value: float | None, dtype: torch.dtype, default: int = 0) -> float:
    """Return the value of the padding; warn the caller's caller if it was not chosen and may be an index."""
    if fill_value is not None:
        return fill_value
    if dtype in _INDEX_DTYPES and not torch.compiler.is_compiling():
        warnings.warn(
            f"this result is padded with {default}, which is a valid index: writing through it may overwrite "
            "an element that was not selected. Write with `gapless.ops.assign`, or give `fill_value` the "
            f"position of a spare element; `fill_value={default}` if the padding is masked",
            UserWarning,
            stacklevel=3,
        )
    return default


def not_padding(values: Tensor, number: Tensor) -> Tensor:
    """Return which rows of `values` (size, ...) come before `number`: bool (size,)."""
    return torch.arange(values.shape[0], device=values.device) < number


def true_positions(mask: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the positions of the first `size` true elements of `mask` (n,), padded with n, and how many."""
    if size < 0:
        raise ValueError(f"expected a non-negative size, but got {size}")
    if mask.shape[0] == 0:
        none = torch.zeros((), dtype=torch.long, device=mask.device)
        return torch.zeros(size, dtype=torch.long, device=mask.device), none
    length, running_count = mask.shape[0], mask.cumsum(0)
    # Elements that are not selected or do not fit go to an additional last slot, which is cut off.
    slots = torch.where(mask, running_count - 1, size).clamp_max(size)
    at = torch.full((size + 1,), length, device=mask.device)
    at = at.scatter(0, slots, torch.arange(length, device=mask.device))
    return at[:size], running_count[-1]


def take_rows(rows: Tensor, at: Tensor, fill_value: float) -> Tensor:
    """Return the rows (n, ...) at positions `at` (k,), `fill_value` where a position is n."""
    length = rows.shape[0]
    if length == 0:
        return rows.new_full((at.shape[0], *rows.shape[1:]), fill_value)
    taken = rows.index_select(0, at.clamp_max(length - 1))
    valid = (at < length).view(-1, *(1,) * (rows.dim() - 1))
    return torch.where(valid, taken, torch.full((), fill_value, dtype=rows.dtype, device=rows.device))
