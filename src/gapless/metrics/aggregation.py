"""Sums, means, extremes and rows of values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from gapless.metrics import fusing
from gapless.metrics.batch import CPU, Batch
from gapless.metrics.metric import Metric
from gapless.metrics.rows import Rows
from gapless.metrics.statistic import HIGHEST, LOWEST, Slot, State, Statistic

STRATEGIES = ("error", "warn", "ignore", "disable")
Nan = str | float


class Aggregate(Statistic):
    """Values without their NaNs, which are treated as `nan` says and counted."""

    def __init__(self, nan: Nan, slots: dict[str, Slot], nans_apart: bool = True) -> None:
        self.nan = nan
        self.severity = "error" if nan == "error" else "warn"
        found = {"nans": Slot()} if nans_apart and nan != "disable" else {}
        self._arrays: dict[str, tuple[Tensor, Any]] = {}
        super().__init__((nan,), {**slots, **found}, checked=nan in ("error", "warn"))

    def add(self, name: str, number: float) -> None:
        """Add a number of the host to a slot; on the CPU straight in memory, which costs less."""
        tensor = self.state[name]
        if self.device != CPU or torch.compiler.is_compiling():
            tensor.add_(number)
            return
        self.array(name)[()] += number

    def array(self, name: str) -> Any:
        """A slot on the CPU as NumPy sees it."""
        tensor = self.state[name]
        held = self._arrays.get(name)
        if held is None or held[0] is not tensor:
            held = self._arrays[name] = (tensor, tensor.numpy())
        return held[1]

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
    """The sum of weighted values, the sum of their weights, and the number of NaNs, side by side.

    A NaN adds a number to all three that is too small to be seen in the first two: so one addition is enough
    for a value, whether it is a NaN or not.
    """

    lowest: Tensor
    highest: Tensor
    NAMES = ("sum", "weight", "nans")

    def __init__(self, nan: Nan) -> None:
        self.constants = {
            "lowest": torch.tensor([LOWEST, 1.0, 0.0], dtype=torch.float64, device="cpu"),
            "highest": torch.tensor([HIGHEST, 1.0, 0.0], dtype=torch.float64, device="cpu"),
        }
        super().__init__(nan, {"totals": Slot((3,), torch.float64)}, nans_apart=False)

    @property
    def saved_slots(self) -> dict[str, Slot]:
        names = self.NAMES[: 2 if self.nan == "disable" else 3]
        dtypes = {"nans": torch.int64}
        found = {name: Slot(dtype=dtypes.get(name, torch.float64)) for name in names}
        return {**found, "clean": self.clean}

    def decoded(self, state: State) -> State:
        totals = state["totals"]
        found = {"sum": totals[..., 0] - totals[..., 2], "weight": totals[..., 1] - totals[..., 2]}
        if self.nan != "disable":
            found["nans"] = (totals[..., 2] / speck(totals.dtype)).to(torch.int64)
        return {**found, **{name: value for name, value in state.items() if name != "totals"}}

    def encoded(self, saved: State) -> State:
        dtype = self.state["totals"].dtype
        nans = saved.get("nans", torch.zeros_like(saved["sum"])).to(dtype) * speck(dtype)
        totals = torch.stack((saved["sum"].to(dtype) + nans, saved["weight"].to(dtype) + nans, nans), -1)
        return {"totals": totals, **{n: value for n, value in saved.items() if n not in self.NAMES}}

    def mean(self, dtype: torch.dtype) -> Tensor:
        """The weighted mean, in `dtype`."""
        totals = self.state["totals"]
        if fusing.on(self.device):
            return fusing.mean(totals, dtype)
        both = totals[:2] - totals[2]
        return (both[0] / both[1]).to(dtype)

    def faults(self) -> Tensor | None:
        totals = self.state["totals"]
        return None if self.nan == "disable" else (totals[2] / speck(totals.dtype)).to(torch.int64)

    def fault_cells(self) -> Tensor | None:
        totals = self.state["totals"]
        if self.nan == "disable":
            return None
        return totals.view(torch.int64)[2] if totals.dtype == torch.float64 else totals[2]

    def told_by(self, pieces: Sequence[Tensor]) -> tuple[int, int]:
        dtype = self.state["totals"].dtype
        nans = pieces[0].view(dtype) if pieces[0].dtype == torch.int64 else pieces[0]
        return int(nans.item() / speck(dtype)), int(pieces[-1].item())

    def faults_on_host(self) -> int:
        return (
            0 if self.nan == "disable" else int(self.array("totals")[2] / speck(self.state["totals"].dtype))
        )

    def count(self, batch: Batch) -> None:
        args = batch.args
        value: Any = plain(args[0])
        weight: Any = plain(args[1]) if len(args) > 1 else 1.0
        if weight is None:
            weight = 1.0
        if not isinstance(value, Tensor) and not isinstance(weight, Tensor):
            self._add_numbers(value, weight)
        elif not isinstance(value, Tensor):
            self._add_weighted(torch.full_like(weight, value, dtype=self.state["totals"].dtype), weight)
        elif isinstance(weight, Tensor):
            self._add_weighted(value, weight.broadcast_to(value.shape))
        else:
            self._add_tensor(value, weight)

    def _add_numbers(self, value: float, weight: float) -> None:
        if self.nan != "disable" and (value != value or weight != weight):
            self._add_nans(1)
            if not isinstance(self.nan, float):
                return
            value, weight = self.nan, 1.0
        if self.device != CPU or torch.compiler.is_compiling():
            totals = self.state["totals"]
            totals[0].add_(value * weight)
            totals[1].add_(weight)
        else:
            array = self.array("totals")
            array[0] += value * weight
            array[1] += weight

    def _add_nans(self, nans: Tensor | int) -> None:
        totals = self.state["totals"]
        if isinstance(nans, Tensor):
            totals.add_(nans, alpha=speck(totals.dtype))
        else:
            totals.add_(nans * speck(totals.dtype))

    def _add_tensor(self, value: Tensor, weight: float) -> None:
        totals = self.state["totals"]
        if self.nan == "disable" or not value.is_floating_point():
            totals[0].add_(value.sum(dtype=totals.dtype), alpha=weight)
        elif weight != weight or isinstance(self.nan, float):
            self._add_weighted(value, torch.full_like(value, weight))
            return
        elif value.numel() == 1 and weight == 1:
            if fusing.on(self.device):
                fusing.add_value(value, totals, self.state["clean"], self.checked, speck(totals.dtype))
                self.noted = self.checked
                return
            # A value between the bounds is itself; 1 and 0 are between theirs alone; a NaN is between none.
            found = torch.clamp(value.reshape(()), self.lowest, self.highest)
            totals.add_(found.nan_to_num_(speck(totals.dtype), posinf=torch.inf, neginf=-torch.inf))
            return
        else:
            nans = value.isnan().sum()
            totals[0].add_(value.nansum(dtype=totals.dtype), alpha=weight)
            totals[1].add_(value.numel() - nans, alpha=weight)
            self._add_nans(nans)  # last: no sum may go down to 0 with it
            return
        totals[1].add_(value.numel() * weight)

    def _add_weighted(self, value: Tensor, weight: Tensor) -> None:
        totals = self.state["totals"]
        if self.nan != "disable":
            nans = value.isnan() | weight.isnan()
            self._add_nans(nans.sum())
            imputed = isinstance(self.nan, float)
            value = value.masked_fill(nans, float(self.nan) if imputed else 0.0)
            weight = weight.masked_fill(nans, 1.0 if imputed else 0.0)
        totals[0].add_((value.to(totals.dtype) * weight).sum())
        totals[1].add_(weight.sum(dtype=totals.dtype))


def speck(dtype: torch.dtype) -> float:
    """What a NaN adds to sums of this dtype: a power of two that sums of other values do not notice."""
    return 2.0**-1000 if dtype == torch.float64 else 2.0**-100


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


class Aggregator(Metric, abstract=True):
    """What the aggregating metrics have in common: the strategy for NaN.

    Args:
        nan_strategy: what becomes of NaN: ``"error"`` and ``"warn"`` remove it and tell with the next reading
            (on the CPU at once), ``"ignore"`` removes it, ``"disable"`` lets it through, a float takes its
            place.
    """

    part: ClassVar[tuple[str, Callable[[Nan], Statistic]] | None] = None
    """The attribute that the statistic is, and what makes it for a strategy."""

    def __init__(self, nan_strategy: Nan = "warn", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if nan_strategy not in STRATEGIES and not isinstance(nan_strategy, float):
            raise ValueError(
                f"Arg `nan_strategy` should either be a float or one of {STRATEGIES} but got {nan_strategy}."
            )
        self.nan_strategy = nan_strategy
        if self.part is not None:
            name, make = self.part
            self.use(name, make(nan_strategy))

    def update(self, value: float | Tensor) -> None:
        """Take in `value`, a number or a tensor of any shape."""
        self.observe(value)


class MeanMetric(Aggregator):
    """The weighted mean of all values."""

    torchmetrics_slots = "mean_value:f=sum weight:f=weight"
    part = ("weighted", WeightedTotal)
    weighted: WeightedTotal

    def update(self, value: float | Tensor, weight: float | Tensor | None = 1.0) -> None:
        """Add `value`, a number or a tensor of any shape, with a weight that broadcasts to it."""
        self.observe(value, weight)

    def value(self) -> Tensor:
        return self.weighted.mean(self.dtype)


class SumMetric(Aggregator):
    """The sum of all values."""

    torchmetrics_slots = "sum_value:f=sum"
    part = ("total", Total)
    total: Total

    def value(self) -> Tensor:
        return self.total.state["sum"].to(self.dtype, copy=True)


class ExtremeMetric(Aggregator, abstract=True):
    """The largest or the smallest value."""

    extreme: Extreme

    def value(self) -> Tensor:
        return self.extreme.state["value"].to(self.dtype, copy=True)


class MaxMetric(ExtremeMetric):
    """The largest value."""

    torchmetrics_slots = "max_value:f=value"
    part = ("extreme", partial(Extreme, largest=True))


class MinMetric(ExtremeMetric):
    """The smallest value."""

    torchmetrics_slots = "min_value:f=value"
    part = ("extreme", partial(Extreme, largest=False))


class CatMetric(Aggregator):
    """All values, one after the other.

    With ``nan_strategy`` ``"warn"`` or ``"ignore"`` the length of the result depends on the data, and
    ``compute`` waits for the device to learn it. With `capacity` there is room for that many rows and the
    storage never changes; rows beyond it are counted and told with the next reading.
    """

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
