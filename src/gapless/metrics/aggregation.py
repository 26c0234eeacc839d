"""Sums, means, extremes and rows of values."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from gapless.metrics.batch import CPU, Batch
from gapless.metrics.metric import Metric
from gapless.metrics.rows import Rows
from gapless.metrics.statistic import HIGHEST, LOWEST, Slot, Statistic

STRATEGIES = ("error", "warn", "ignore", "disable")
Nan = str | float


class Aggregate(Statistic):
    """Values without their NaNs, which are treated as `nan` says and counted."""

    def __init__(self, nan: Nan, slots: dict[str, Slot]) -> None:
        self.nan = nan
        self.severity = "error" if nan == "error" else "warn"
        found = {} if nan == "disable" else {"nans": Slot()}
        self._arrays: dict[str, tuple[Tensor, Any]] = {}
        super().__init__((nan,), {**slots, **found}, checked=nan in ("error", "warn"))

    def add(self, name: str, number: float) -> None:
        """Add a number of the host to a slot; on the CPU straight in memory, which costs less."""
        tensor = self.state[name]
        if self.device != CPU or torch.compiler.is_compiling():
            tensor.add_(number)
            return
        held = self._arrays.get(name)
        if held is None or held[0] is not tensor:
            held = self._arrays[name] = (tensor, tensor.numpy())
        held[1][()] += number

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arrays": {}}

    def faults(self) -> Tensor | None:
        return self.state.get("nans")

    def complaint(self, count: int) -> str:
        return nan_complaint(self.nan, count)

    def number(self, value: float) -> float | None:
        """`value`, a Python number, after the strategy for NaN; None where it is removed."""
        if self.nan == "disable" or not math.isnan(value):
            return value
        self.add("nans", 1)
        return float(self.nan) if isinstance(self.nan, float) else None

    def values(self, value: Tensor, fill: float) -> Tensor:
        """`value` with what is removed replaced by `fill`."""
        if self.nan == "disable" or not (value.is_floating_point() or value.is_complex()):
            return value
        nans = value.isnan()
        self.state["nans"].add_(nans.sum())
        return value.masked_fill(nans, float(self.nan) if isinstance(self.nan, float) else fill)


def nan_complaint(nan: Nan, count: int) -> str:
    """What to say about `count` NaNs."""
    removed = "" if nan == "error" else ", left out"
    return f"Encountered `nan` values in tensor: {count} of them{removed}"


def plain(value: Any) -> Any:
    """A tensor of the CPU with no dimension as a number; reading it costs no wait."""
    if isinstance(value, Tensor) and value.dim() == 0 and value.device.type == "cpu":
        return value if torch.compiler.is_compiling() else value.item()
    return value


class Total(Aggregate):
    """The sum of all values."""

    def __init__(self, nan: Nan) -> None:
        super().__init__(nan, {"sum": Slot(dtype=torch.float64)})

    def count(self, batch: Batch) -> None:
        value = plain(batch.args[0])
        if isinstance(value, Tensor):
            self.state["sum"].add_(self.values(value, 0.0).sum(dtype=self.state["sum"].dtype))
        else:
            number = self.number(value)
            if number is not None:
                self.add("sum", number)


class Extreme(Aggregate):
    """The largest or the smallest value."""

    def __init__(self, nan: Nan, largest: bool) -> None:
        self.largest = largest
        self.start = LOWEST if largest else HIGHEST
        reduction = "max" if largest else "min"
        super().__init__(nan, {"value": Slot(dtype=torch.float64, initial=self.start, reduction=reduction)})
        self.key = (*self.key, largest)

    def count(self, batch: Batch) -> None:
        value, state = plain(batch.args[0]), self.state["value"]
        if not isinstance(value, Tensor):
            number = self.number(value)
            if number is None:
                return
            if math.isnan(number):
                state.add_(number)
            else:
                state.clamp_(min=number) if self.largest else state.clamp_(max=number)
        elif value.numel():
            value = self.values(value, self.start)
            if self.largest:
                torch.maximum(state, value.amax().to(state.dtype), out=state)
            else:
                torch.minimum(state, value.amin().to(state.dtype), out=state)


class WeightedTotal(Aggregate):
    """The sum of weighted values and the sum of their weights."""

    def __init__(self, nan: Nan) -> None:
        super().__init__(nan, {"sum": Slot(dtype=torch.float64), "weight": Slot(dtype=torch.float64)})

    def count(self, batch: Batch) -> None:
        args = batch.args
        value: Any = plain(args[0])
        weight: Any = plain(args[1]) if len(args) > 1 else 1.0
        if weight is None:
            weight = 1.0
        if not isinstance(value, Tensor) and not isinstance(weight, Tensor):
            self._add_numbers(value, weight)
        elif not isinstance(value, Tensor):
            self._add_weighted(torch.full_like(weight, value, dtype=self.state["sum"].dtype), weight)
        elif isinstance(weight, Tensor):
            self._add_weighted(value, weight.broadcast_to(value.shape))
        else:
            self._add_tensor(value, weight)

    def _add_numbers(self, value: float, weight: float) -> None:
        if self.nan != "disable" and (value != value or weight != weight):
            self.add("nans", 1)
            if not isinstance(self.nan, float):
                return
            value, weight = self.nan, 1.0
        self.add("sum", value * weight)
        self.add("weight", weight)

    def _add_tensor(self, value: Tensor, weight: float) -> None:
        total, weights = self.state["sum"], self.state["weight"]
        if self.nan == "disable" or not value.is_floating_point():
            total.add_(value.sum(dtype=total.dtype), alpha=weight)
        elif weight != weight or isinstance(self.nan, float):
            self._add_weighted(value, torch.full_like(value, weight))
            return
        else:
            nans = value.isnan().sum()
            self.state["nans"].add_(nans)
            total.add_(value.nansum(dtype=total.dtype), alpha=weight)
            weights.sub_(nans, alpha=weight)
        weights.add_(value.numel() * weight)

    def _add_weighted(self, value: Tensor, weight: Tensor) -> None:
        dtype = self.state["sum"].dtype
        if self.nan != "disable":
            nans = value.isnan() | weight.isnan()
            self.state["nans"].add_(nans.sum())
            imputed = isinstance(self.nan, float)
            value = value.masked_fill(nans, float(self.nan) if imputed else 0.0)
            weight = weight.masked_fill(nans, 1.0 if imputed else 0.0)
        self.state["sum"].add_((value.to(dtype) * weight).sum())
        self.state["weight"].add_(weight.sum(dtype=dtype))


class Values(Rows):
    """Every value, in order."""

    def __init__(self, nan: Nan, capacity: int | None) -> None:
        self.nan = nan
        self.severity = "error" if nan == "error" else "warn"
        checked = nan in ("error", "warn") or capacity is not None
        super().__init__((nan,), {"value": None}, capacity, checked)

    def complaint(self, count: int) -> str:
        return nan_complaint(self.nan, count) + self.full()

    def count(self, batch: Batch) -> None:
        value = batch.args[0]
        if not isinstance(value, Tensor):
            value = torch.full((1,), value, dtype=torch.float64, device=self.device)
        if value.numel() == 0:
            return
        if self.nan != "disable" and value.is_floating_point():
            nans = value.isnan()
            if self.nan in ("error", "warn"):
                self.state["strange"].add_(nans.sum())
            value = value.masked_fill(nans, self.nan) if isinstance(self.nan, float) else value
        self.append(value=value if value.dim() else value.reshape(1))


class Aggregator(Metric):
    """What the aggregating metrics have in common: the strategy for NaN."""

    def __init__(self, nan_strategy: Nan, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if nan_strategy not in STRATEGIES and not isinstance(nan_strategy, float):
            raise ValueError(
                f"Arg `nan_strategy` should either be a float or one of {STRATEGIES} but got {nan_strategy}."
            )
        self.nan_strategy = nan_strategy


class MeanMetric(Aggregator):
    """The weighted mean of all values.

    Args:
        nan_strategy: what becomes of NaN: ``"error"`` and ``"warn"`` remove it and tell with the next reading
            (on the CPU at once), ``"ignore"`` removes it, ``"disable"`` lets it through, a float takes its
            place.
    """

    aliases: ClassVar[dict[str, str]] = {"mean_value": "weighted.sum", "weight": "weighted.weight"}
    weighted: WeightedTotal

    def __init__(self, nan_strategy: Nan = "warn", **kwargs: Any) -> None:
        super().__init__(nan_strategy, **kwargs)
        self.use("weighted", WeightedTotal(nan_strategy))

    def update(self, value: float | Tensor, weight: float | Tensor | None = 1.0) -> None:
        """Add `value`, a number or a tensor of any shape, with a weight that broadcasts to it."""
        self.observe(value, weight)

    def value(self) -> Tensor:
        state = self.weighted.state
        return (state["sum"] / state["weight"]).to(self.dtype)


class SumMetric(Aggregator):
    """The sum of all values; `nan_strategy` as in :class:`MeanMetric`."""

    aliases: ClassVar[dict[str, str]] = {"sum_value": "total.sum"}
    total: Total

    def __init__(self, nan_strategy: Nan = "warn", **kwargs: Any) -> None:
        super().__init__(nan_strategy, **kwargs)
        self.use("total", Total(nan_strategy))

    def update(self, value: float | Tensor) -> None:
        """Add `value`, a number or a tensor of any shape."""
        self.observe(value)

    def value(self) -> Tensor:
        return self.total.state["sum"].to(self.dtype, copy=True)


class MaxMetric(Aggregator):
    """The largest value; `nan_strategy` as in :class:`MeanMetric`."""

    aliases: ClassVar[dict[str, str]] = {"max_value": "extreme.value"}
    extreme: Extreme

    def __init__(self, nan_strategy: Nan = "warn", **kwargs: Any) -> None:
        super().__init__(nan_strategy, **kwargs)
        self.use("extreme", Extreme(nan_strategy, largest=True))

    def update(self, value: float | Tensor) -> None:
        """Take in `value`, a number or a tensor of any shape."""
        self.observe(value)

    def value(self) -> Tensor:
        return self.extreme.state["value"].to(self.dtype, copy=True)


class MinMetric(Aggregator):
    """The smallest value; `nan_strategy` as in :class:`MeanMetric`."""

    aliases: ClassVar[dict[str, str]] = {"min_value": "extreme.value"}
    extreme: Extreme

    def __init__(self, nan_strategy: Nan = "warn", **kwargs: Any) -> None:
        super().__init__(nan_strategy, **kwargs)
        self.use("extreme", Extreme(nan_strategy, largest=False))

    def update(self, value: float | Tensor) -> None:
        """Take in `value`, a number or a tensor of any shape."""
        self.observe(value)

    def value(self) -> Tensor:
        return self.extreme.state["value"].to(self.dtype, copy=True)


class CatMetric(Aggregator):
    """All values, one after the other.

    With ``nan_strategy`` ``"warn"`` or ``"ignore"`` the length of the result depends on the data, and
    ``compute`` waits for the device to learn it. With `capacity` there is room for that many rows and the
    storage never changes; rows beyond it are counted and told with the next reading.
    """

    aliases: ClassVar[dict[str, str]] = {"value": "values.value"}
    values: Values

    def __init__(self, nan_strategy: Nan = "warn", capacity: int | None = None, **kwargs: Any) -> None:
        super().__init__(nan_strategy, **kwargs)
        self.use("values", Values(nan_strategy, capacity))

    def update(self, value: float | Tensor) -> None:
        """Append `value`, a number or a tensor ``(N, ...)``."""
        self.observe(value)

    def value(self) -> Tensor:
        found = self.values.known("value").to(self.dtype, copy=True)
        if self.nan_strategy in ("warn", "ignore"):
            kept = ~found.isnan()
            return found if kept.all() else found[kept]
        return found
