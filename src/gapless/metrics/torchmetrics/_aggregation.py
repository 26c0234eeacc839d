"""TorchMetrics' aggregators without waits: NaN is counted on the device, numbers are filled in there."""

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

NAN_MESSAGE = "{n} values were `nan`"
NEUTRAL_VALUES: tuple[tuple[type[BaseAggregator], float], ...] = (
    (MeanMetric, 0.0),
    (SumMetric, 0.0),
    (MaxMetric, float("-inf")),
    (MinMetric, float("inf")),
)
"""For each aggregator, the value that changes nothing: it replaces a `nan` that is left out."""


def neutral_value(metric: object) -> float | None:
    """Return the value that replaces a `nan` left out of `metric`, or None if its class is unknown."""
    return next((value for cls, value in NEUTRAL_VALUES if isinstance(metric, cls)), None)


def to_device_tensor(metric: BaseAggregator, value: Any) -> Tensor:
    """Return `value` as a tensor on the metric's device."""
    if isinstance(value, Tensor):
        return value
    return as_tensor_without_waiting(value, dtype=metric.dtype, device=metric.device)


class UnwaitedAggregator(BaseAggregator):
    """An aggregator that does not check for `nan` on the host.

    A `nan` is not removed, which would wait for the size of the rest, but replaced by a neutral value with
    weight 0. With the strategies ``error`` and ``warn`` it is counted and reported later.
    """

    def _cast_and_nan_check_input(
        self, x: float | Tensor, weight: float | Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        x, weight = to_device_tensor(self, x), None if weight is None else to_device_tensor(self, weight)
        is_supported = neutral_value(self) is not None or isinstance(self, CatMetric)
        if self.nan_strategy == "disable" or not is_supported:
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
            return (
                x,
                weight,
            )  # removed and reported by compute, because the size of the rest depends on the data
        if self.nan_strategy in ("error", "warn"):
            report(NAN_MESSAGE, nans, error=self.nan_strategy == "error")
        value = neutral_value(self)
        assert value is not None
        return x.masked_fill(nans, value), weight.masked_fill(nans, 0)

    def _wrap_update(self, update: Callable[..., Any]) -> Callable[..., Any]:
        return _place_numbers(self, super()._wrap_update(update), update)


def _place_numbers(
    metric: BaseAggregator, wrapped: Callable[..., Any], update: Callable[..., Any]
) -> Callable[..., Any]:
    """Return `wrapped`, called with device tensors in place of numbers and of defaults that are numbers.

    A user's own `update` usually copies numbers to the device as TorchMetrics does, which waits.
    """
    parameters = [
        parameter
        for parameter in inspect.signature(update).parameters.values()
        if parameter.name in ("value", "weight")
    ]
    numbers = {
        parameter.name: parameter.default
        for parameter in parameters
        if type(parameter.default) in (int, float)
    }
    order = [parameter.name for parameter in parameters]

    def place_number(value: Any) -> Any:
        return to_device_tensor(metric, value) if type(value) in (int, float, bool) else value

    @functools.wraps(update)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name, default in numbers.items():
            if name not in kwargs and order.index(name) >= len(args):
                kwargs[name] = default
        named = {name: place_number(value) for name, value in kwargs.items()}
        return wrapped(*map(place_number, args), **named)

    return call


class UnwaitedMean(MeanMetric):
    """`MeanMetric` that does not check weights of its own making for `nan`."""

    def update(self, value: float | Tensor, weight: float | Tensor | None = None) -> None:
        own = type(self)._cast_and_nan_check_input is UnwaitedAggregator._cast_and_nan_check_input
        value = to_device_tensor(self, value)
        if (
            weight is not None
            or not own
            or not value.is_floating_point()
            or isinstance(self.nan_strategy, float)
        ):
            super().update(
                value, *(() if weight is None else (to_device_tensor(self, weight),))
            )  # no None before 1.6
            return
        value = value.to(self.dtype)
        count: Tensor | int = value.numel()
        if self.nan_strategy != "disable":
            nans = torch.isnan(value)
            cut = nans.sum() if nans.dim() else nans
            if self.nan_strategy in ("error", "warn"):
                report(NAN_MESSAGE, cut, error=self.nan_strategy == "error")
            value, count = value.masked_fill(nans, 0.0), count - cut.to(self.dtype)
        if value.numel():
            self.mean_value += value.sum() if value.dim() else value
            self.weight += count


class UnwaitedCat(CatMetric):
    """`CatMetric` that removes `nan` in `compute`: one wait there instead of two in each update."""

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
            counter.note(Check(NAN_MESSAGE, self.nan_strategy == "error"), kept.numel() - clean.numel())
        return clean if clean.numel() else []  # type: ignore[return-value]  # as TorchMetrics has it
