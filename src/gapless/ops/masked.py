"""Reductions over the elements a mask selects, at the size of the whole tensor.

In each of them `mask` is a bool tensor that broadcasts to `x`; values outside the mask, NaN and infinity
included, reach neither the result nor a gradient. Where a mask selects very little of a very large tensor,
``x[mask]`` can still win: it waits once, and everything after it is small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, dtype

from gapless.ops.dtypes import limits, wide
from gapless.ops.masks import spread


def masked_sum(
    x: Tensor,
    mask: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: dtype | None = None,
) -> Tensor:
    """Sum of the elements that `mask` selects, over `dim` (all dimensions by default).

    `mask` is a bool tensor that broadcasts to `x`; what it leaves out reaches neither result nor gradient.

    Replaces::

        total = x[mask].sum()
        total = ops.masked_sum(x, mask)

    Nothing selected: 0, and a gradient of 0. Integers and bools add up in int64, as in ``torch.sum``.

    Raises:
        ValueError: `mask` is not bool or does not broadcast to `x`.
    """
    chosen = torch.where(spread(mask, x.shape), x, 0)
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
    """Mean of the elements that `mask` selects, over `dim` (all dimensions by default).

    `mask` and `dim` as in :func:`masked_sum`.

    Replaces::

        mean = x[mask].mean()
        mean = ops.masked_mean(x, mask)

    Nothing selected: NaN as in ``x[mask].mean()``, or `empty` where given; the gradient is 0. Half precision
    is summed in float32.

    Raises:
        RuntimeError: `x` holds integers and no floating `dtype` is given, as in ``torch.mean``.
        ValueError: `mask` is not bool or does not broadcast to `x`.
    """
    result = dtype or x.dtype
    if not (result.is_floating_point or result.is_complex):
        raise RuntimeError(f"a mean needs floating point or complex values, but got {result}; give dtype=")
    mask, dims = spread(mask, x.shape), _dims(x, dim)
    total = torch.where(mask, x, 0).sum(dims, keepdim, dtype=wide(result))
    count = mask.sum(dims, keepdim)
    return _where_empty(total / count, count, empty).to(result)


def masked_var(
    x: Tensor,
    mask: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    correction: float = 1,
    empty: float | None = None,
) -> Tensor:
    """Variance of the elements that `mask` selects, over `dim`; real floating point values.

    `mask` and `dim` as in :func:`masked_sum`.

    Replaces::

        variance = x[mask].var()
        variance = ops.masked_var(x, mask)

    Fewer elements than `correction` needs: NaN (or infinity) and its gradients as in ``torch.var``.
    Nothing selected: NaN, or `empty` where given, with a gradient of 0.

    Raises:
        RuntimeError: `x` is not of real floating point.
        ValueError: `mask` is not bool or does not broadcast to `x`.
    """
    if not x.is_floating_point():
        raise RuntimeError(f"a variance needs real floating point values, but got {x.dtype}")
    mask, dims = spread(mask, x.shape), _dims(x, dim)
    count = mask.sum(dims, True)
    values = torch.where(mask, x, 0).to(wide(x.dtype))
    mean = values.sum(dims, True) / count.clamp_min(1)
    squares = torch.where(mask, values - mean, 0).square().sum(dims, keepdim)
    count = count.view_as(squares)
    variance = squares / (count - correction).clamp_min(0)
    return _where_empty(variance, count, empty).to(x.dtype)


def masked_std(
    x: Tensor,
    mask: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    correction: float = 1,
    empty: float | None = None,
) -> Tensor:
    """Standard deviation of the elements that `mask` selects: the root of :func:`masked_var`.

    `mask` and `dim` as in :func:`masked_sum`.

    Replaces::

        spread = x[mask].std()
        spread = ops.masked_std(x, mask)

    Where it is 0 its gradient is 0, as in ``torch.std``.
    """
    values = x.to(wide(x.dtype)) if x.is_floating_point() else x
    variance = masked_var(values, mask, dim, keepdim, correction=correction)
    flat = variance == 0
    root = torch.where(flat, 0.0, torch.where(flat, 1.0, variance).sqrt())
    count = spread(mask, x.shape).sum(_dims(x, dim), keepdim)
    return _where_empty(root, count, empty).to(x.dtype)


def masked_min(
    x: Tensor,
    mask: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    empty: float | None = None,
) -> Tensor:
    """Smallest of the elements that `mask` selects, over `dim` (values without indices, as ``amin``).

    `mask` and `dim` as in :func:`masked_sum`.

    Replaces::

        least = x[mask].min()
        least = ops.masked_min(x, mask)

    Equal elements share the gradient evenly. Nothing selected: ``x[mask].min()`` raises; here the result is
    `empty` or, without it, infinity (the largest value of an integer dtype), with a gradient of 0.
    """
    return _extreme(x, mask, dim, keepdim, empty, torch.amin, limits(x.dtype)[1])


def masked_max(
    x: Tensor,
    mask: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    empty: float | None = None,
) -> Tensor:
    """Largest of the elements that `mask` selects, over `dim` (values without indices, as ``amax``).

    `mask` and `dim` as in :func:`masked_sum`.

    Replaces::

        most = x[mask].max()
        most = ops.masked_max(x, mask)

    Nothing selected: `empty` or, without it, minus infinity (the least value of an integer dtype). Else as
    :func:`masked_min`.
    """
    return _extreme(x, mask, dim, keepdim, empty, torch.amax, limits(x.dtype)[0])


def masked_softmax(x: Tensor, mask: Tensor, dim: int, *, dtype: dtype | None = None) -> Tensor:
    """Softmax along `dim` among the elements that `mask` selects; 0 elsewhere. The shape of `x`.

    `mask` is a bool tensor that broadcasts to `x`.

    Replaces::

        out = torch.zeros_like(scores)                    # for one row
        out[mask] = scores[mask].softmax(0)
        out = ops.masked_softmax(scores, mask, dim=0)

    A slice of which nothing is selected is 0 throughout, with a gradient of 0. (``masked_fill`` with minus
    infinity before ``softmax`` makes such a slice NaN, forward and backward.)
    """
    mask = spread(mask, x.shape)
    return torch.where(mask, _among(x.to(dtype or x.dtype), mask, dim).softmax(dim), 0.0)


def masked_log_softmax(x: Tensor, mask: Tensor, dim: int, *, dtype: dtype | None = None) -> Tensor:
    """Logarithm of :func:`masked_softmax`: minus infinity outside the mask, with a gradient of 0 there.

    Replaces::

        out = torch.full_like(scores, -torch.inf)         # for one row
        out[mask] = scores[mask].log_softmax(0)
        out = ops.masked_log_softmax(scores, mask, dim=0)
    """
    mask = spread(mask, x.shape)
    return torch.where(mask, _among(x.to(dtype or x.dtype), mask, dim).log_softmax(dim), -torch.inf)


def _among(x: Tensor, mask: Tensor, dim: int) -> Tensor:
    """`x` with minus infinity outside the mask, and 0 in slices that would be minus infinity throughout."""
    outside = torch.where(mask.any(dim, keepdim=True), -torch.inf, 0.0).to(x.dtype)
    return torch.where(mask, x, outside)


def _extreme(
    x: Tensor,
    mask: Tensor,
    dim: int | Sequence[int] | None,
    keepdim: bool,
    empty: float | None,
    reduce: Callable[..., Tensor],
    neutral: float,
) -> Tensor:
    mask, dims = spread(mask, x.shape), _dims(x, dim)
    found = reduce(torch.where(mask, x, neutral), dims, keepdim)
    return found if empty is None else torch.where(mask.sum(dims, keepdim) > 0, found, empty).to(x.dtype)


def _dims(x: Tensor, dim: int | Sequence[int] | None) -> list[int]:
    if dim is None:
        return list(range(x.dim()))
    return [dim] if isinstance(dim, int) else list(dim)


def _where_empty(found: Tensor, count: Tensor, empty: float | None) -> Tensor:
    return found if empty is None else torch.where(count > 0, found, empty)
