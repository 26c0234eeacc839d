"""Counting at a fixed size: occurrences, distinct values, histograms, one-hot."""

from __future__ import annotations

import torch
from torch import Tensor, dtype

from gapless.ops.distinct import run_starts


def count_unique(x: Tensor, *, low: int = 0, high: int | None = None, mask: Tensor | None = None) -> Tensor:
    """Return how many distinct values `x` has: a 0-dim int64 tensor on the device.

    With `high`, for integers, only values in [low, high) count, with one pass and no sort. Without it `x` is
    sorted, and every NaN counts as distinct, as in ``torch.unique``. If `mask`, of the shape of `x`, is
    given, only elements where it is true count.

    Replaces::

        number = torch.unique(labels).numel()
        number = ops.count_unique(labels)
        number = ops.count_unique(labels, low=-1, high=classes)

    For no elements it is 0.

    Raises:
        ValueError: `mask` has another shape, or `x` holds no integers and `high` is given.
    """
    if mask is not None and mask.shape != x.shape:
        raise ValueError(f"expected a mask of shape {tuple(x.shape)}, but got {tuple(mask.shape)}")
    flat = x.detach().flatten()
    if flat.shape[0] == 0:
        return torch.zeros((), dtype=torch.long, device=x.device)
    chosen = None if mask is None else mask.flatten()
    if high is not None:
        _require_integers(x)
        flat = flat.long()  # a bound need not fit a narrow dtype
        inside = (flat >= low) & (flat < high)
        if chosen is not None:
            inside &= chosen
        slots = torch.where(inside, flat - low, high - low)
        occurs = torch.zeros(high - low + 1, dtype=torch.long, device=x.device)
        return occurs.index_fill_(0, slots, 1)[:-1].sum()
    ordered, order = flat.sort()
    starts = run_starts(ordered)
    if chosen is None:
        return starts.sum()
    rank = starts.cumsum(0) - 1
    hits = torch.zeros_like(rank).scatter_add_(0, rank, chosen[order].long())
    return (hits > 0).sum()


def bincount(x: Tensor, weights: Tensor | None = None, *, size: int) -> Tensor:
    """Return how often each of 0, ..., size - 1 occurs in `x`, or the sum of its `weights`: (size,).

    As ``torch.bincount(x, weights, minlength=size)`` if all values are below `size`, with its dtypes (int64;
    with weights float32 for float32, else float64). Values outside [0, size), such as an ignored label, are
    not counted. `x` may have any shape; gradients flow to the weights.

    Replaces::

        counts = torch.bincount(x, minlength=classes)          # reads smallest and largest value
        counts = ops.bincount(x, size=classes)

    Raises:
        ValueError: `x` holds no integers, or the weights have another shape.
    """
    _require_integers(x)
    if weights is not None and weights.shape != x.shape:
        raise ValueError(f"expected weights of shape {tuple(x.shape)}, but got {tuple(weights.shape)}")
    flat = x.flatten().long()
    inside = (flat >= 0) & (flat < size)
    slots = torch.where(inside, flat, size)
    if weights is None:
        values = torch.ones((), dtype=torch.long, device=x.device).expand(slots.shape)
    else:
        kind = torch.float32 if weights.dtype == torch.float32 else torch.float64
        # A NaN weight of an uncounted value must not reach a gradient.
        values = torch.where(inside, weights.flatten().to(kind), 0)
    start = torch.zeros(size + 1, dtype=values.dtype, device=x.device)
    return start.scatter_add(0, slots, values)[:size]


def histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Return ``torch.histc`` for real floating point values: (bins,), of the dtype of `x`.

    With `min` equal to `max` the bins reach from the smallest to the largest finite value of `x`, computed on
    the device, where ``torch.histc`` reads them on the host. Infinity and NaN are in no bin. With bounds this
    is ``torch.histc``, which then does not wait.

    Replaces::

        counts = torch.histc(x, bins=50)
        counts = ops.histc(x, bins=50)
    """
    if min != max:
        return torch.histc(x, bins, min, max)
    x = x.detach().flatten()
    low, high = _value_range(x, None, 1.0)
    slots = ((x - low) * (bins / (high - low))).long().clamp(0, bins - 1)
    return bincount(torch.where(x.isfinite(), slots, bins), size=bins).to(x.dtype)


def histogram(
    x: Tensor,
    bins: int | Tensor,
    *,
    range: tuple[float, float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return counts (bins,) and edges (bins + 1,) as ``torch.histogram``, which does not support CUDA.

    Both have the dtype of `x`. `bins` is the number of bins, or their rising edges. The last bin includes its
    right edge. Without `range` the edges reach from the smallest to the largest finite value. `weight` has
    the shape of `x`; with `density` the counts become a density that integrates to 1.

    Replaces::

        counts, edges = torch.histogram(x.cpu(), 50)
        counts, edges = ops.histogram(x, 50)

    Raises:
        ValueError: the weights have another shape than `x`.
    """
    if weight is not None and weight.shape != x.shape:
        raise ValueError(f"expected weights of shape {tuple(x.shape)}, but got {tuple(weight.shape)}")
    x = x.detach()
    edges = bins if isinstance(bins, Tensor) else _bin_edges(x, bins, range, 0.5)
    number = edges.shape[0] - 1
    counts = _count_in_bins(x, edges, weight, number).to(x.dtype)
    if density:
        counts = counts / counts.sum() / edges.diff()
    return counts, edges


def one_hot(x: Tensor, num_classes: int, *, dtype: dtype = torch.int64) -> Tensor:
    """Return one-hot rows (..., num_classes) of class indices (...); zeros for an index out of range.

    Replaces::

        rows = F.one_hot(labels)                 # reads the largest label
        rows = ops.one_hot(labels, classes)

    ``F.one_hot(labels, classes)`` does not wait either, but fails for an ignored label.
    """
    _require_integers(x)
    if num_classes < 1:
        raise ValueError(f"expected at least one class, but got {num_classes}")
    x = x.long().unsqueeze(-1)
    inside = (x >= 0) & (x < num_classes)
    rows = torch.zeros(*x.shape[:-1], num_classes, dtype=dtype, device=x.device)
    return rows.scatter(-1, x.clamp(0, num_classes - 1), inside.to(dtype))


def _bin_edges(x: Tensor, bins: int, range: tuple[float, float] | None, widen: float) -> Tensor:
    """Return edges (bins + 1,) of bins of equal width; equal ends are moved apart by `widen` on each side."""
    steps = torch.arange(bins + 1, dtype=x.dtype, device=x.device)
    low, high = _value_range(x, range, widen)
    return torch.where(steps == bins, high, low + (high - low) * (steps / bins))


def _value_range(x: Tensor, range: tuple[float, float] | None, widen: float) -> tuple[Tensor, Tensor]:
    """Return the least and largest finite value of `x`, or `range`, moved apart by `widen` if equal."""
    if range is not None:
        low = torch.full((), range[0], dtype=x.dtype, device=x.device)
        high = torch.full((), range[1], dtype=x.dtype, device=x.device)
    elif x.numel() == 0:
        low, high = x.new_zeros(()), x.new_ones(())
    else:
        finite = x.isfinite()
        low = torch.where(finite, x, torch.inf).amin()
        high = torch.where(finite, x, -torch.inf).amax()
        nothing = ~finite.any()
        low, high = torch.where(nothing, 0.0, low), torch.where(nothing, 1.0, high)
    same = low == high
    return torch.where(same, low - widen, low), torch.where(same, high + widen, high)


def _count_in_bins(x: Tensor, edges: Tensor, weight: Tensor | None, bins: int) -> Tensor:
    """Count elements of `x`, or sum their weights, between the edges; the last bin has its right edge."""
    flat = x.flatten()
    slots = torch.searchsorted(edges, flat, right=True) - 1
    slots = torch.where(flat == edges[-1], bins - 1, slots)
    return bincount(slots, weight.detach().flatten() if weight is not None else None, size=bins)


def _require_integers(x: Tensor) -> None:
    if x.is_floating_point() or x.is_complex():
        raise ValueError(f"expected integers, but got {x.dtype}")
