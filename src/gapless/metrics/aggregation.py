"""Sum, mean, minimum, maximum and concatenation of values."""

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
NanStrategy = str | float
"""One of `STRATEGIES`, or a value that replaces NaN."""


class Aggregate(Statistic):
    """A statistic of values, with NaN handled by the strategy `nan` and counted."""

    def __init__(self, nan: NanStrategy, slots: dict[str, Slot], nans_apart: bool = True) -> None:
        self.nan = nan
        self.severity = "error" if nan == "error" else "warn"
        nan_slots = {"nans": Slot()} if nans_apart and nan != "disable" else {}
        self._arrays: dict[str, tuple[Tensor, Any]] = {}
        super().__init__((nan,), {**slots, **nan_slots}, checked=nan in ("error", "warn"))

    def add(self, name: str, number: float) -> None:
        """Add a Python number to a slot; on the CPU directly in memory, which is faster."""
        tensor = self.state[name]
        if self.device != CPU or torch.compiler.is_compiling():
            tensor.add_(number)
            return
        self.array(name)[()] += number

    def array(self, name: str) -> Any:
        """Return a slot on the CPU as a NumPy array that shares its memory."""
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
        """Return `value`, a Python number, with NaN handled; None if it is to be left out."""
        if self.nan == "disable" or not math.isnan(value):
            return value
        self.add("nans", 1)
        return float(self.nan) if isinstance(self.nan, float) else None

    def values(self, value: Tensor, fill: float) -> Tensor:
        """Return `value` with NaN handled, those left out replaced by `fill`."""
        if self.nan == "disable" or not (value.is_floating_point() or value.is_complex()):
            return value
        nans = value.isnan()
        self.state["nans"].add_(nans.sum())
        return value.masked_fill(nans, float(self.nan) if isinstance(self.nan, float) else fill)


def nan_complaint(nan: NanStrategy, count: int) -> str:
    """Return the message about `count` NaNs."""
    removed = "" if nan == "error" else ", left out"
    return f"Encountered `nan` values in tensor: {count} of them{removed}"


def as_number(value: Any) -> Any:
    """Return a 0-dim CPU tensor as a number (reading it costs no wait), anything else unchanged."""
    if isinstance(value, Tensor) and value.dim() == 0 and value.device.type == "cpu":
        return value if torch.compiler.is_compiling() else value.item()
    return value


class Total(Aggregate):
    """The sum of all values."""

    def __init__(self, nan: NanStrategy) -> None:
        super().__init__(nan, {"sum": Slot(dtype=torch.float64)})

    def count(self, batch: Batch) -> None:
        value = as_number(batch.args[0])
        if isinstance(value, Tensor):
            self.state["sum"].add_(self.values(value, 0.0).sum(dtype=self.state["sum"].dtype))
        else:
            number = self.number(value)
            if number is not None:
                self.add("sum", number)


class Extreme(Aggregate):
    """The largest or the smallest value."""

    def __init__(self, nan: NanStrategy, largest: bool) -> None:
        self.largest = largest
        self.start = LOWEST if largest else HIGHEST
        reduction = "max" if largest else "min"
        super().__init__(nan, {"value": Slot(dtype=torch.float64, initial=self.start, reduction=reduction)})
        self.key = (*self.key, largest)

    def count(self, batch: Batch) -> None:
        value, state = as_number(batch.args[0]), self.state["value"]
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
    """The sum of weighted values, the sum of their weights, and the number of NaNs, in one tensor.

    A NaN adds :func:`nan_mark` to all three, which is too small to change the first two: so a single addition
    handles a value, NaN or not.
    """

    lowest: Tensor
    highest: Tensor
    NAMES = ("sum", "weight", "nans")

    def __init__(self, nan: NanStrategy) -> None:
        self.constants = {
            "lowest": torch.tensor([LOWEST, 1.0, 0.0], dtype=torch.float64, device="cpu"),
            "highest": torch.tensor([HIGHEST, 1.0, 0.0], dtype=torch.float64, device="cpu"),
        }
        super().__init__(nan, {"totals": Slot((3,), torch.float64)}, nans_apart=False)

    @property
    def saved_slots(self) -> dict[str, Slot]:
        names = self.NAMES[: 2 if self.nan == "disable" else 3]
        dtypes = {"nans": torch.int64}
        slots = {name: Slot(dtype=dtypes.get(name, torch.float64)) for name in names}
        return {**slots, "clean": self.clean}

    def decode(self, state: State) -> State:
        totals = state["totals"]
        saved = {"sum": totals[..., 0] - totals[..., 2], "weight": totals[..., 1] - totals[..., 2]}
        if self.nan != "disable":
            saved["nans"] = (totals[..., 2] / nan_mark(totals.dtype)).to(torch.int64)
        return {**saved, **{name: value for name, value in state.items() if name != "totals"}}

    def encode(self, saved: State) -> State:
        dtype = self.state["totals"].dtype
        nans = saved.get("nans", torch.zeros_like(saved["sum"])).to(dtype) * nan_mark(dtype)
        totals = torch.stack((saved["sum"].to(dtype) + nans, saved["weight"].to(dtype) + nans, nans), -1)
        return {"totals": totals, **{n: value for n, value in saved.items() if n not in self.NAMES}}

    def mean(self, dtype: torch.dtype) -> Tensor:
        """Return the weighted mean, in `dtype`."""
        totals = self.state["totals"]
        if fusing.uses_kernels(self.device):
            return fusing.compute_mean(totals, dtype)
        both = totals[:2] - totals[2]
        return (both[0] / both[1]).to(dtype)

    def faults(self) -> Tensor | None:
        totals = self.state["totals"]
        return None if self.nan == "disable" else (totals[2] / nan_mark(totals.dtype)).to(torch.int64)

    def fault_cells(self) -> Tensor | None:
        totals = self.state["totals"]
        if self.nan == "disable":
            return None
        return totals.view(torch.int64)[2] if totals.dtype == torch.float64 else totals[2]

    def read_faults(self, pieces: Sequence[Tensor]) -> tuple[int, int]:
        dtype = self.state["totals"].dtype
        nans = pieces[0].view(dtype) if pieces[0].dtype == torch.int64 else pieces[0]
        return int(nans.item() / nan_mark(dtype)), int(pieces[-1].item())

    def faults_on_host(self) -> int:
        return (
            0
            if self.nan == "disable"
            else int(self.array("totals")[2] / nan_mark(self.state["totals"].dtype))
        )

    def count(self, batch: Batch) -> None:
        args = batch.args
        value: Any = as_number(args[0])
        weight: Any = as_number(args[1]) if len(args) > 1 else 1.0
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
        """Add one Python number with its weight."""
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
        """Add the mark of so many NaNs to all three totals."""
        totals = self.state["totals"]
        if isinstance(nans, Tensor):
            totals.add_(nans, alpha=nan_mark(totals.dtype))
        else:
            totals.add_(nans * nan_mark(totals.dtype))

    def _add_tensor(self, value: Tensor, weight: float) -> None:
        """Add the elements of a tensor, all with the same weight."""
        totals = self.state["totals"]
        if self.nan == "disable" or not value.is_floating_point():
            totals[0].add_(value.sum(dtype=totals.dtype), alpha=weight)
        elif weight != weight or isinstance(self.nan, float):
            self._add_weighted(value, torch.full_like(value, weight))
            return
        elif value.numel() == 1 and weight == 1:
            if fusing.uses_kernels(self.device):
                fusing.add_value(value, totals, self.state["clean"], self.checked, nan_mark(totals.dtype))
                self.noted = self.checked
                return
            # Clamping gives the value, weight 1 and NaN count 0; of a NaN, NaN in all three.
            clamped = torch.clamp(value.reshape(()), self.lowest, self.highest)
            totals.add_(clamped.nan_to_num_(nan_mark(totals.dtype), posinf=torch.inf, neginf=-torch.inf))
            return
        else:
            nans = value.isnan().sum()
            totals[0].add_(value.nansum(dtype=totals.dtype), alpha=weight)
            totals[1].add_(value.numel() - nans, alpha=weight)
            self._add_nans(nans)  # last: no sum may go down to 0 with it
            return
        totals[1].add_(value.numel() * weight)

    def _add_weighted(self, value: Tensor, weight: Tensor) -> None:
        """Add the elements of a tensor with a weight for each."""
        totals = self.state["totals"]
        if self.nan != "disable":
            nans = value.isnan() | weight.isnan()
            self._add_nans(nans.sum())
            imputed = isinstance(self.nan, float)
            value = value.masked_fill(nans, float(self.nan) if imputed else 0.0)
            weight = weight.masked_fill(nans, 1.0 if imputed else 0.0)
        totals[0].add_((value.to(totals.dtype) * weight).sum())
        totals[1].add_(weight.sum(dtype=totals.dtype))


def nan_mark(dtype: torch.dtype) -> float:
    """Return what a NaN adds to sums of `dtype`: a power of two too small to change a sum of other values."""
    return 2.0**-1000 if dtype == torch.float64 else 2.0**-100


class Values(Rows):
    """Every value, in order."""

    def __init__(self, nan: NanStrategy, capacity: int | None) -> None:
        self.nan = nan
        self.severity = "error" if nan == "error" else "warn"
        checked = nan in ("error", "warn") or capacity is not None
        super().__init__((nan,), {"value": None}, capacity, checked)

    def complaint(self, count: int) -> str:
        return nan_complaint(self.nan, count) + self.capacity_note()

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
    """Base of the aggregating metrics, with the strategy for NaN.

    Args:
        nan_strategy: how NaN is handled: ``"error"`` and ``"warn"`` remove it and report with the next
            reading (on the CPU at once), ``"ignore"`` removes it, ``"disable"`` keeps it, a float replaces
            it.
    """

    part: ClassVar[tuple[str, Callable[[NanStrategy], Statistic]] | None] = None
    """Attribute name of the statistic, and the function that creates it for a strategy."""

    def __init__(self, nan_strategy: NanStrategy = "warn", **kwargs: Any) -> None:
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
        """Add `value`, a number or a tensor of any shape."""
        self.observe(value)


class MeanMetric(Aggregator):
    """The weighted mean of all values."""

    torchmetrics_slots = (("mean_value", "sum"), ("weight", "weight"))
    part = ("weighted", WeightedTotal)
    weighted: WeightedTotal

    def update(self, value: float | Tensor, weight: float | Tensor | None = 1.0) -> None:
        """Add `value`, a number or a tensor of any shape, with a weight that broadcasts to it."""
        self.observe(value, weight)

    def value(self) -> Tensor:
        return self.weighted.mean(self.dtype)


class SumMetric(Aggregator):
    """The sum of all values."""

    torchmetrics_slots = (("sum_value", "sum"),)
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

    torchmetrics_slots = (("max_value", "value"),)
    part = ("extreme", partial(Extreme, largest=True))


class MinMetric(ExtremeMetric):
    """The smallest value."""

    torchmetrics_slots = (("min_value", "value"),)
    part = ("extreme", partial(Extreme, largest=False))


class CatMetric(Aggregator):
    """All values, one after the other.

    With ``nan_strategy`` ``"warn"`` or ``"ignore"`` the length of the result depends on the data, so
    ``compute`` waits for the device. With `capacity`, storage has that fixed number of rows; further rows are
    left out, counted and reported with the next reading.
    """

    values: Values

    def __init__(
        self, nan_strategy: NanStrategy = "warn", capacity: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(nan_strategy, **kwargs)
        self.use("values", Values(nan_strategy, capacity))

    def update(self, value: float | Tensor) -> None:
        """Append `value`, a number or a tensor ``(N, ...)``."""
        self.observe(value)

    def value(self) -> Tensor:
        rows = self.values.valid_rows("value").to(self.dtype, copy=True)
        if self.nan_strategy in ("warn", "ignore"):
            kept = ~rows.isnan()
            return rows if kept.all() else rows[kept]
        return rows
