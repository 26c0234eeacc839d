"""Reductions over the elements a mask selects, at the size of the whole tensor.

`mask` is always a bool tensor that broadcasts to `x`; values outside the mask affect neither result nor
gradient, even if they are NaN or infinite. If a mask selects very little of a very large tensor, ``x[mask]``
can still be faster: it waits once, and everything after it is small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, dtype

from gapless.ops.dtypes import dtype_limits, sum_dtype
from gapless.ops.masks import expand_mask


def masked_sum(
    x: Tensor,
    mask: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: dtype | None = None,
) -> Tensor:
    """Return the sum of the elements that `mask` selects, over `dim` (all dimensions by default).

    `mask` is a bool tensor that broadcasts to `x`; other elements affect neither result nor gradient.

    Replaces::

        total = x[mask].sum()
        total = ops.masked_sum(x, mask)

    If nothing is selected, it is 0, with a gradient of 0. Integers and bools are summed in int64.

    Raises:
        ValueError: `mask` is not bool or does not broadcast to `x`.
    """
    chosen = torch.where(expand_mask(mask, x.shape), x, 0)
    return chosen.sum(_dims(x, dim), keepdim, dtype=dtype)


def masked_mean(
    x: Tensor,
    mask: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: dtype | None = None,
    empty: float | None = None,
) -> Tensor:
    """Return the mean of the elements that `mask` selects, over `dim` (all dimensions by default).

    `mask` and `dim` as in :func:`masked_sum`.

    Replaces::

        mean = x[mask].mean()
        mean = ops.masked_mean(x, mask)

    If nothing is selected, it is NaN as in ``x[mask].mean()``, or `empty` if given; the gradient is 0. Half
    precision is summed in float32.

    Raises:
        RuntimeError: `x` holds integers and no floating `dtype` is given, as in ``torch.mean``.
        ValueError: `mask` is not bool or does not broadcast to `x`.
    """
    result = dtype or x.dtype
    if not (result.is_floating_point or result.is_complex):
        raise RuntimeError(f"a mean needs floating point or complex values, but got {result}; give dtype=")
    mask, dims = expand_mask(mask, x.shape), _dims(x, dim)
    total = torch.where(mask, x, 0).sum(dims, keepdim, dtype=sum_dtype(result))
    count = mask.sum(dims, keepdim)
    return _replace_empty(total / count, count, empty).to(result)


def masked_var(
    x: Tensor,
    mask: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    correction: float = 1,
    empty: float | None = None,
) -> Tensor:
    """Return the variance of the elements that `mask` selects, over `dim`; real floating point values.

    `mask` and `dim` as in :func:`masked_sum`.

    Replaces::

        variance = x[mask].var()
        variance = ops.masked_var(x, mask)

    With fewer elements than `correction` needs, it is NaN (or infinity), with gradients as in ``torch.var``.
    If nothing is selected, it is NaN, or `empty` if given, with a gradient of 0.

    Raises:
        RuntimeError: `x` is not real floating point.
        ValueError: `mask` is not bool or does not broadcast to `x`.
    """
    if not x.is_floating_point():
        raise RuntimeError(f"a variance needs real floating point values, but got {x.dtype}")
    mask, dims = expand_mask(mask, x.shape), _dims(x, dim)
    count = mask.sum(dims, True)
    values = torch.where(mask, x, 0).to(sum_dtype(x.dtype))
    mean = values.sum(dims, True) / count.clamp_min(1)
    squares = torch.where(mask, values - mean, 0).square().sum(dims, keepdim)
    count = count.view_as(squares)
    variance = squares / (count - correction).clamp_min(0)
    return _replace_empty(variance, count, empty).to(x.dtype)


def masked_std(
    x: Tensor,
    mask: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    correction: float = 1,
    empty: float | None = None,
) -> Tensor:
    """Return the standard deviation of the elements that `mask` selects: the root of :func:`masked_var`.

    `mask` and `dim` as in :func:`masked_sum`.

    Replaces::

        spread = x[mask].std()
        spread = ops.masked_std(x, mask)

    Where it is 0 its gradient is 0, as in ``torch.std``.
    """
    values = x.to(sum_dtype(x.dtype)) if x.is_floating_point() else x
    variance = masked_var(values, mask, dim, keepdim, correction=correction)
    flat = variance == 0
    root = torch.where(flat, 0.0, torch.where(flat, 1.0, variance).sqrt())
    count = expand_mask(mask, x.shape).sum(_dims(x, dim), keepdim)
    return _replace_empty(root, count, empty).to(x.dtype)


def masked_min(
    x: Tensor,
    mask: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    empty: float | None = None,
) -> Tensor:
    """Return the smallest of the elements that `mask` selects, over `dim`, without indices, as ``amin``.

    `mask` and `dim` as in :func:`masked_sum`.

    Replaces::

        least = x[mask].min()
        least = ops.masked_min(x, mask)

    Equal elements share the gradient evenly. If nothing is selected, ``x[mask].min()`` raises; here the
    result is `empty` or, without it, infinity (the largest value of an integer dtype), with a gradient of 0.
    """
    return _masked_extreme(x, mask, dim, keepdim, empty, torch.amin, dtype_limits(x.dtype)[1])


def masked_max(
    x: Tensor,
    mask: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    empty: float | None = None,
) -> Tensor:
    """Return the largest of the elements that `mask` selects, over `dim`, without indices, as ``amax``.

    `mask` and `dim` as in :func:`masked_sum`.

    Replaces::

        most = x[mask].max()
        most = ops.masked_max(x, mask)

    If nothing is selected, it is `empty` or, without it, minus infinity (the least value of an integer
    dtype). Otherwise as :func:`masked_min`.
    """
    return _masked_extreme(x, mask, dim, keepdim, empty, torch.amax, dtype_limits(x.dtype)[0])


def masked_softmax(x: Tensor, mask: Tensor, dim: int, *, dtype: dtype | None = None) -> Tensor:
    """Return the softmax along `dim` among the elements that `mask` selects; 0 elsewhere. The shape of `x`.

    `mask` is a bool tensor that broadcasts to `x`.

    Replaces::

        out = torch.zeros_like(scores)                    # for one row
        out[mask] = scores[mask].softmax(0)
        out = ops.masked_softmax(scores, mask, dim=0)

    A slice without selected elements is 0, with a gradient of 0. (``masked_fill`` with minus infinity before
    ``softmax`` makes such a slice NaN, forward and backward.)
    """
    mask = expand_mask(mask, x.shape)
    return torch.where(mask, _fill_outside(x.to(dtype or x.dtype), mask, dim).softmax(dim), 0.0)


def masked_log_softmax(x: Tensor, mask: Tensor, dim: int, *, dtype: dtype | None = None) -> Tensor:
    """Return the logarithm of :func:`masked_softmax`: minus infinity outside the mask, with a gradient of 0.

    Replaces::

        out = torch.full_like(scores, -torch.inf)         # for one row
        out[mask] = scores[mask].log_softmax(0)
        out = ops.masked_log_softmax(scores, mask, dim=0)
    """
    mask = expand_mask(mask, x.shape)
    return torch.where(mask, _fill_outside(x.to(dtype or x.dtype), mask, dim).log_softmax(dim), -torch.inf)


def _fill_outside(x: Tensor, mask: Tensor, dim: int) -> Tensor:
    """Return `x` with minus infinity outside the mask, but 0 in slices without selected elements."""
    outside = torch.where(mask.any(dim, keepdim=True), -torch.inf, 0.0).to(x.dtype)
    return torch.where(mask, x, outside)


def _masked_extreme(
    x: Tensor,
    mask: Tensor,
    dim: int | Sequence[int] | None,
    keepdim: bool,
    empty: float | None,
    reduce: Callable[..., Tensor],
    neutral: float,
) -> Tensor:
    """Reduce `x` with `reduce` (``amin`` or ``amax``), with `neutral` outside the mask."""
    mask, dims = expand_mask(mask, x.shape), _dims(x, dim)
    extreme = reduce(torch.where(mask, x, neutral), dims, keepdim)
    return extreme if empty is None else torch.where(mask.sum(dims, keepdim) > 0, extreme, empty).to(x.dtype)


def _dims(x: Tensor, dim: int | Sequence[int] | None) -> list[int]:
    """Return the dimensions to reduce as a list; all for None."""
    if dim is None:
        return list(range(x.dim()))
    return [dim] if isinstance(dim, int) else list(dim)


def _replace_empty(result: Tensor, count: Tensor, empty: float | None) -> Tensor:
    """Return `result` with `empty`, if given, where `count` is 0."""
    return result if empty is None else torch.where(count > 0, result, empty)
