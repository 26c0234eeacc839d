"""Peak signal-to-noise ratio of images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.metric import Metric
from gapless.metrics.reduced import UNREDUCED, Every, Sum
from gapless.metrics.regression.errors import float_pair
from gapless.metrics.statistic import storable

REDUCTIONS = ("elementwise_mean", "sum", "none", None)
"""Accepted values of `reduction`."""
ValueRange = tuple[float, float] | None


def squared_errors(batch: Batch, bounds: ValueRange) -> Tensor:
    """Return the squared differences of values clamped to `bounds`."""
    preds, target = batch.derive(float_pair)
    if bounds is not None:
        preds, target = preds.clamp(*bounds), target.clamp(*bounds)
    return (preds - target).square()


def mean_squared_errors(batch: Batch, bounds: ValueRange, dims: tuple[int, ...]) -> Tensor:
    """Return the squared differences averaged over `dims`, flattened to ``(N,)``."""
    errors: Tensor = batch.derive(squared_errors, bounds)
    wide = storable(torch.float64, errors.device)
    return errors.mean(dims or None, dtype=wide).reshape(-1) if errors.numel() else errors.new_zeros(0)


class PeakSignalNoiseRatio(Metric):
    """The logarithm of the squared range of values over the mean squared difference, in decibels.

    Args:
        data_range: the width of the range of values; a tuple of its bounds also clamps values to them.
        base: the base of the logarithm.
        reduction: with `dim`, how values are combined: ``"elementwise_mean"``, ``"sum"``, or ``"none"`` or
            None to keep them.
        dim: the dimensions over which differences are averaged; None for all dimensions and all batches.
        capacity: with `dim`, the maximum number of values, kept in fixed storage.
    """

    torchmetrics_file = "psnr"
    torchmetrics_slots = (("sum_squared_error", "sum"), ("total", "seen", "int64"))
    plot_lower_bound = 0.0
    is_differentiable = True
    higher_is_better = True
    noise: Sum | Every

    def __init__(
        self,
        data_range: float | tuple[float, float],
        base: float = 10.0,
        reduction: str | None = "elementwise_mean",
        dim: int | Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        capacity = kwargs.pop("capacity", None)
        super().__init__(**kwargs)
        checks.check_one_of("reduction", reduction, REDUCTIONS)
        if dim is None and reduction != "elementwise_mean":
            checks.warn(f"The `reduction={reduction}` will not have any effect when `dim` is None.")
        bounds = data_range if isinstance(data_range, tuple) else None
        self.data_range = float(data_range) if not isinstance(data_range, tuple) else range_width(data_range)
        self.base = base
        self.reduction = reduction
        self.dim = tuple(dim) if isinstance(dim, Sequence) else dim
        if dim is None:
            self.use("noise", Sum(squared_errors, (bounds,)))
        else:
            dims = (dim,) if isinstance(dim, int) else tuple(dim)
            column = ("mean", ((), torch.float64))
            self.use("noise", Every(mean_squared_errors, (bounds, dims), capacity, column))

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch of images and their references, of the same shape."""
        self.observe(preds, target)

    def value(self) -> Tensor:
        scale = 10 / math.log(self.base)
        ratio = (2 * math.log(self.data_range) - self.noise.reduced().log()) * scale
        if self.dim is not None and self.reduction not in UNREDUCED:
            ratio = ratio.sum() if self.reduction == "sum" else ratio.mean()
        return ratio.to(self.dtype)


def range_width(bounds: tuple[float, float]) -> float:
    """Return the distance between the bounds."""
    return float(bounds[1] - bounds[0])
