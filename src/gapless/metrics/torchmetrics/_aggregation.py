"""TorchMetrics' aggregators without their waits: NaN counted on the device, numbers filled in on it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchmetrics.aggregation import BaseAggregator, CatMetric, MaxMetric, MeanMetric, MinMetric, SumMetric

from gapless.metrics.torchmetrics._checks import Check, counter_of, report
from gapless.metrics.torchmetrics._constants import as_tensor_without_waiting

NANS = "{n} values were `nan`"
NEUTRAL: tuple[tuple[type[BaseAggregator], float], ...] = (
    (MeanMetric, 0.0),
    (SumMetric, 0.0),
    (MaxMetric, float("-inf")),
    (MinMetric, float("inf")),
)
"""The value that changes nothing, for each aggregator: it stands where a `nan` is left out."""


def neutral_value(metric: object) -> float | None:
    """What stands in for a `nan` that is left out of `metric`, or None where its class is not known."""
    return next((value for cls, value in NEUTRAL if isinstance(metric, cls)), None)


def placed(metric: BaseAggregator, value: Any) -> Tensor:
    """`value` as a tensor on the metric's device."""
    if isinstance(value, Tensor):
        return value
    return as_tensor_without_waiting(value, dtype=metric.dtype, device=metric.device)


class UnwaitedAggregator(BaseAggregator):
    """An aggregator that does not ask on the host whether there is a `nan`.

    A `nan` is not cut out (that would wait for the size of the rest) but replaced by a value that changes
    nothing, with weight 0. With the strategies ``error`` and ``warn`` it is counted and reported later.
    """

    def _cast_and_nan_check_input(
        self, x: float | Tensor, weight: float | Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        x, weight = placed(self, x), None if weight is None else placed(self, weight)
        known = neutral_value(self) is not None or isinstance(self, CatMetric)
        if self.nan_strategy == "disable" or not known:
            return super()._cast_and_nan_check_input(x, weight)
        weight = torch.ones_like(x) if weight is None else weight
        if x.is_floating_point() or weight.is_floating_point():
            x, weight = self._without_nans(x, weight)
        return x.to(self.dtype), weight.to(self.dtype)

    def _without_nans(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        nans = torch.isnan(x) | torch.isnan(weight)
        if isinstance(self.nan_strategy, float):
            return x.masked_fill(nans, self.nan_strategy), weight.masked_fill(nans, 1)
        if isinstance(self, CatMetric):
            return x, weight  # cut out and reported by compute: the size of what is left depends on the data
        if self.nan_strategy in ("error", "warn"):
            report(NANS, nans, error=self.nan_strategy == "error")
        value = neutral_value(self)
        assert value is not None
        return x.masked_fill(nans, value), weight.masked_fill(nans, 0)

    def _wrap_update(self, update: Callable[..., Any]) -> Callable[..., Any]:
        return _numbers_filled_in(self, super()._wrap_update(update), update)


def _numbers_filled_in(
    metric: BaseAggregator, wrapped: Callable[..., Any], update: Callable[..., Any]
) -> Callable[..., Any]:
    """`wrapped`, called with device tensors where the caller, or a default, gave a number.

    An `update` of the user's own usually places numbers on the device as TorchMetrics does, which waits.
    """
    parameters = [
        one for one in inspect.signature(update).parameters.values() if one.name in ("value", "weight")
    ]
    numbers = {one.name: one.default for one in parameters if type(one.default) in (int, float)}
    order = [one.name for one in parameters]

    def number_placed(value: Any) -> Any:
        return placed(metric, value) if type(value) in (int, float, bool) else value

    @functools.wraps(update)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name, default in numbers.items():
            if name not in kwargs and order.index(name) >= len(args):
                kwargs[name] = default
        named = {name: number_placed(value) for name, value in kwargs.items()}
        return wrapped(*map(number_placed, args), **named)

    return call


class UnwaitedMean(MeanMetric):
    """`MeanMetric` that does not look for `nan` among weights it has made itself."""

    def update(self, value: float | Tensor, weight: float | Tensor | None = None) -> None:
        own = type(self)._cast_and_nan_check_input is UnwaitedAggregator._cast_and_nan_check_input
        value = placed(self, value)
        if (
            weight is not None
            or not own
            or not value.is_floating_point()
            or isinstance(self.nan_strategy, float)
        ):
            super().update(value, *(() if weight is None else (placed(self, weight),)))  # no None before 1.6
            return
        value = value.to(self.dtype)
        count: Tensor | int = value.numel()
        if self.nan_strategy != "disable":
            nans = torch.isnan(value)
            cut = nans.sum() if nans.dim() else nans
            if self.nan_strategy in ("error", "warn"):
                report(NANS, cut, error=self.nan_strategy == "error")
            value, count = value.masked_fill(nans, 0.0), count - cut.to(self.dtype)
        if value.numel():
            self.mean_value += value.sum() if value.dim() else value
            self.weight += count


class UnwaitedCat(CatMetric):
    """`CatMetric` that cuts out `nan` when it is computed: one wait there instead of two in each update."""

    def compute(self) -> Tensor:
        kept = super().compute()
        cuts = self.nan_strategy in ("error", "warn", "ignore")
        if not cuts or not isinstance(kept, Tensor) or not kept.is_floating_point():
            return kept
        kept = kept.reshape(1) if kept.dim() == 0 else kept
        clean = kept[~torch.isnan(kept)]
        if not self._is_synced:
            self.value = [clean] if clean.numel() else []  # type: ignore[assignment]
        counter = counter_of(self)
        if counter is not None and self.nan_strategy != "ignore":
            counter.note(Check(NANS, self.nan_strategy == "error"), kept.numel() - clean.numel())
        return clean if clean.numel() else []  # type: ignore[return-value]  # as TorchMetrics has it
