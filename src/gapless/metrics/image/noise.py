"""How loud the noise of an image is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.metric import Metric
from gapless.metrics.reduced import EVERY, Every, Sum
from gapless.metrics.regression.errors import pair
from gapless.metrics.statistic import storable

REDUCTIONS = ("elementwise_mean", "sum", "none", None)
Bounds = tuple[float, float] | None


def noise(batch: Batch, bounds: Bounds) -> Tensor:
    """Squared differences, of values clamped to the bounds."""
    preds, target = batch.derive(pair)
    if bounds is not None:
        preds, target = preds.clamp(*bounds), target.clamp(*bounds)
    return (preds - target).square()


def mean_noise(batch: Batch, bounds: Bounds, dims: tuple[int, ...]) -> Tensor:
    """``(N,)``: their mean over some dimensions, for each place of the others."""
    found: Tensor = batch.derive(noise, bounds)
    wide = storable(torch.float64, found.device)
    return found.mean(dims or None, dtype=wide).reshape(-1) if found.numel() else found.new_zeros(0)


class PeakSignalNoiseRatio(Metric):
    """The logarithm of the squared range of values over the mean squared difference, in decibels.

    Args:
        data_range: the range of values; a tuple of its bounds clamps values to them.
        base: of the logarithm.
        reduction: with `dim`, what becomes of the values: ``"elementwise_mean"``, ``"sum"``, or ``"none"`` or
            None.
        dim: the dimensions over which differences are averaged; None for all, and over batches.
        capacity: with `dim`, the number of values there is room for, in fixed storage.
    """

    torchmetrics_file = "psnr"
    torchmetrics_slots = "sum_squared_error:f=sum total:i=seen"
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
        checks.one_of("reduction", reduction, REDUCTIONS)
        if dim is None and reduction != "elementwise_mean":
            checks.warn(f"The `reduction={reduction}` will not have any effect when `dim` is None.")
        bounds = data_range if isinstance(data_range, tuple) else None
        self.data_range = float(data_range) if not isinstance(data_range, tuple) else bounds_apart(data_range)
        self.base = base
        self.reduction = reduction
        self.dim = tuple(dim) if isinstance(dim, Sequence) else dim
        if dim is None:
            self.use("noise", Sum(noise, (bounds,)))
        else:
            dims = (dim,) if isinstance(dim, int) else tuple(dim)
            column = ("mean", ((), torch.float64))
            self.use("noise", Every(mean_noise, (bounds, dims), capacity, column))

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch of images and of what they should be, of the same shape."""
        self.observe(preds, target)

    def value(self) -> Tensor:
        scale = 10 / math.log(self.base)
        ratio = (2 * math.log(self.data_range) - self.noise.reduced().log()) * scale
        if self.dim is not None and self.reduction not in EVERY:
            ratio = ratio.sum() if self.reduction == "sum" else ratio.mean()
        return ratio.to(self.dtype)


def bounds_apart(bounds: tuple[float, float]) -> float:
    """How far the bounds are from each other."""
    return float(bounds[1] - bounds[0])
