"""Assignments through masks and indices at a fixed size."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gapless.ops.distinct import Distinct
from gapless.ops.masks import expand_leading_mask
from gapless.ops.select import Bounded


def assign(
    x: Tensor,
    index: Tensor | Sequence[Tensor] | Bounded | Distinct,
    value: Tensor | float,
    *,
    accumulate: bool = False,
) -> Tensor:
    """Return a copy of `x` with ``x[index] = value``, of the same shape and dtype.

    `index` is a bool mask of the leading dimensions of `x`, or an integer tensor, or several of them, on the
    device of `x`; or what :func:`gapless.ops.unique`, ``nonzero`` or ``compact`` returns, whose values are
    positions: nothing is written for their padding. `value` is a number, or a tensor that broadcasts to one
    selected element; for a mask also a tensor of the shape of `x`, of which the selected part is used. With
    `accumulate` it is added, once for each occurrence of an index; without it one of the values remains, as
    in ``index_put_``.

    Replaces::

        x[mask] = y[mask]
        x = ops.assign(x, mask, y)
        x[rows] = 0.0          # the number is copied to the device first
        x = ops.assign(x, rows, 0.0)

    For a compact list of values, one per selected element, use :func:`masked_scatter`. Gradients flow to `x`
    outside the selection and to `value` inside.

    Raises:
        IndexError: the mask does not have the leading dimensions of `x`.
        ValueError: `value` is neither a number nor of a shape described above.
    """
    if isinstance(index, (Bounded, Distinct)):
        return _assign_selected(x, index, value, accumulate)
    if isinstance(index, Tensor) and index.dtype == torch.bool:
        chosen = expand_leading_mask(index, x.shape)
        value = _broadcast_value(x, value, index)
        return torch.where(chosen, x + value if accumulate else value, x)
    indices: list[Tensor | None] = [index] if isinstance(index, Tensor) else list(index)
    if any(part is not None and part.dtype == torch.bool for part in indices):
        raise ValueError(
            "expected one mask or integer tensors, but got several indices with a mask among them"
        )
    filled = value.to(x.dtype) if isinstance(value, Tensor) else _as_scalar_tensor(x, value)
    return x.index_put(indices, filled, accumulate)


def _assign_selected(
    x: Tensor, selected: Bounded | Distinct, value: Tensor | float, accumulate: bool
) -> Tensor:
    """Return a copy of `x` with `value` at the positions `selected`; padding writes to a spare row."""
    places = selected.values if selected.values.dim() > 1 else selected.values.unsqueeze(1)
    if not 0 < places.shape[1] <= x.dim():
        raise ValueError(f"positions in {places.shape[1]} dimensions do not fit a tensor of {x.dim()}")
    if x.numel() == 0:
        return x.clone()
    rows, *columns = places.unbind(1)
    rows = torch.where(rows < 0, rows + x.shape[0], rows)  # else -1 would be the spare row
    with_spare = torch.cat([x, x.new_zeros(1, *x.shape[1:])])
    indices: list[Tensor | None] = [torch.where(selected.mask, rows, x.shape[0])]
    indices += [torch.where(selected.mask, column, 0) for column in columns]
    filled = value.to(x.dtype) if isinstance(value, Tensor) else _as_scalar_tensor(x, value)
    return with_spare.index_put(indices, filled, accumulate)[:-1]


def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Return a copy of `x` with the elements selected by `mask` replaced by those of `source`, in order.

    The backward of ``torch.masked_scatter`` selects the gradient of `source` and waits; this one does not.
    `mask` broadcasts to `x`. If `source` has fewer elements than are selected, the rest of `x` is unchanged.

    Replaces::

        x[mask] = source                     # one element for each that is selected
        x = ops.masked_scatter(x, mask, source)

    Raises:
        ValueError: the mask is not of dtype bool, or `source` has another dtype than `x`.
    """
    if source.dtype != x.dtype:
        raise ValueError(f"expected a source of dtype {x.dtype}, but got {source.dtype}")
    x, mask = torch.broadcast_tensors(x, mask)
    expand_leading_mask(mask, x.shape)
    values, length = source.reshape(-1), source.numel()
    if length == 0 or x.numel() == 0:
        return x.clone()
    rank = mask.reshape(-1).cumsum(0) - 1
    values_from_source = values.index_select(0, rank.clamp(0, length - 1)).view(x.shape)
    return torch.where(mask & (rank < length).view(x.shape), values_from_source, x)


def _broadcast_value(x: Tensor, value: Tensor | float, mask: Tensor) -> Tensor:
    """Return `value` in a shape that broadcasts to `x`; raise ValueError if it differs per element."""
    if not isinstance(value, Tensor):
        return _as_scalar_tensor(x, value)
    rest = x.shape[mask.dim() :]
    shape = value.shape[-len(rest) :] if rest else value.shape[:0]
    before = value.shape[: value.dim() - len(shape)]
    fits = all(own in (1, other) for own, other in zip(reversed(shape), reversed(rest), strict=False))
    if value.shape == x.shape or (fits and all(length == 1 for length in before) and len(before) <= 1):
        return value.to(x.dtype)
    raise ValueError(
        f"a value of shape {tuple(value.shape)} is neither one element of shape {tuple(rest)} nor the full "
        f"{tuple(x.shape)}; for a compact list of values use masked_scatter"
    )


def _as_scalar_tensor(x: Tensor, value: float) -> Tensor:
    return torch.full((), value, dtype=x.dtype, device=x.device)
