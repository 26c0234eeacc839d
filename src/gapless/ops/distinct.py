"""Distinct values at a fixed size."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gapless.ops.select import not_padding, padding_value, take_rows, true_positions


class Distinct(NamedTuple):
    """Distinct values at a fixed size.

    `values` (size,) are padded with the fill value. `number` is how many there are, a 0-dim int64 tensor on
    the device, which exceeds the size if not all fit. `inverse` and `counts` are None unless requested:
    `inverse` has the shape of the input and holds the position of each element among the values (beyond the
    size if it did not fit); `counts` (size,) is how often each value occurs, padded with 0. `mask` (size,)
    is true for the values and false for padding.
    """

    values: Tensor
    number: Tensor
    inverse: Tensor | None = None
    counts: Tensor | None = None

    @property
    def mask(self) -> Tensor:
        """Which of `values` are not padding: bool (size,)."""
        return not_padding(self.values, self.number)


def unique(
    x: Tensor,
    *,
    size: int,
    fill_value: float | None = None,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Distinct:
    """Return the distinct values of `x`, sorted, as ``torch.unique``; if more than `size`, the smallest.

    Every NaN is distinct, as there. No gradient. To get only their number, use
    :func:`gapless.ops.count_unique`.

    Replaces::

        values, inverse = torch.unique(x, return_inverse=True)
        values, number, inverse, _ = ops.unique(x, size=100, return_inverse=True)

    Without `fill_value` the padding is 0. For integers a warning says so: if the values index a table, 0 is
    one of its rows, and ``table[values] = rows`` would overwrite that row with what belongs to no value.
    Either write only what is no padding::

        found = ops.unique(ids, size=100, fill_value=0, return_inverse=True)
        table = ops.assign(table, found, rows)

    or give the table a spare row at its end and let the padding point there, which copies no table::

        values = ops.unique(ids, size=100, fill_value=len(table) - 1).values
        table[values] = rows

    Raises:
        ValueError: `size` is negative.
    """
    fill_value = padding_value(fill_value, x.dtype)
    ordered, order = x.detach().flatten().sort()
    return _distinct_runs(ordered, order, x, size, fill_value, return_inverse, return_counts)


def unique_consecutive(
    x: Tensor,
    *,
    size: int,
    fill_value: float | None = None,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Distinct:
    """Return the first of each run of equal values of the flattened `x`, as ``torch.unique_consecutive``.

    Replaces::

        values, lengths = torch.unique_consecutive(x, return_counts=True)
        values, number, _, lengths = ops.unique_consecutive(x, size=100, return_counts=True)

    The padding is as in :func:`unique`.
    """
    fill_value = padding_value(fill_value, x.dtype)
    return _distinct_runs(x.detach().flatten(), None, x, size, fill_value, return_inverse, return_counts)


def run_starts(ordered: Tensor) -> Tensor:
    """Return where a run of equal values begins in `ordered` (n,): bool (n,)."""
    first = torch.ones_like(ordered[:1], dtype=torch.bool)
    return torch.cat([first, ordered[1:] != ordered[:-1]])


def _distinct_runs(
    ordered: Tensor,
    order: Tensor | None,
    x: Tensor,
    size: int,
    fill_value: float,
    return_inverse: bool,
    return_counts: bool,
) -> Distinct:
    length = ordered.shape[0]
    starts = run_starts(ordered)
    at, count = true_positions(starts, size)
    inverse = counts = None
    if return_inverse:
        inverse = rank = starts.cumsum(0) - 1
        if order is not None:
            inverse = torch.empty_like(rank).scatter_(0, order, rank)
        inverse = inverse.view(x.shape)
    if return_counts:
        # A run ends where the next begins; after the last run, `at` is `length`.
        ends = true_positions(starts, size + 1)[0][1:] if length else at
        counts = ends - at
    return Distinct(take_rows(ordered, at, fill_value), count, inverse, counts)
