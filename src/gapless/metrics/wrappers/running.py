"""Metrics over the last updates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gapless.metrics.aggregation import MeanMetric, SumMetric
from gapless.metrics.metric import Metric
from gapless.metrics.rows import Rows
from gapless.metrics.statistic import REDUCE, Slot, State, Statistic, swap
from gapless.metrics.wrappers.inside import check_metric

OWN = ("next", "faults", "clean")
"""Slots of a window that are not rows of the statistic inside."""


class Window(Statistic):
    """The states of the last updates of another statistic, one row each; the device knows the next."""

    def __init__(self, inner: Statistic, window: int) -> None:
        if isinstance(inner, Rows):
            raise ValueError(
                "A statistic that keeps every row has no fixed size and cannot run over a window"
            )
        self.inner = inner
        self.window = window
        slots = {
            name: Slot((window, *slot.shape), slot.dtype, slot.initial, slot.reduction)
            for name, slot in inner.slots.items()
            if name != "clean"
        }
        own = {"next": Slot((1,), reduction="max"), "faults": Slot()}
        super().__init__((inner.key, window), {**slots, **own}, inner.checked)
        self.severity = inner.severity

    def push(self) -> None:
        """Take the inner statistic's state, which is of one batch, into the place of the oldest."""
        at = self.state["next"] % self.window
        for name in self.slots:
            if name not in OWN:
                self.state[name].index_copy_(0, at, self.inner.state[name].unsqueeze(0))
        self.state["next"].add_(1)
        faults = self.inner.faults() if self.checked else None
        if faults is not None:
            self.state["faults"].add_(faults)
            self.note()

    def faults(self) -> Tensor:
        return self.state["faults"]

    def complaint(self, count: int) -> str:
        return self.inner.complaint(count)

    def joined(self) -> State:
        """The state of all batches in the window."""
        rows = [
            {name: self.state[name][i] for name in self.inner.slots if name != "clean"}
            for i in range(self.window)
        ]
        start = {name: value.clone() for name, value in rows[0].items()}
        for row in rows[1:]:
            for name, slot in self.inner.slots.items():
                if name != "clean" and slot.reduction != "fold":
                    REDUCE[slot.reduction](start[name], row[name])
            if any(slot.reduction == "fold" for slot in self.inner.slots.values()):
                self.inner.merge_folded(start, row)
        return {**start, "clean": self.inner.state["clean"]}

    def merge_folded(self, into: State, other: State) -> None:
        for i in range(self.window):
            self.inner.merge_folded(
                {name: value[i] for name, value in into.items() if name not in OWN},
                {name: value[i] for name, value in other.items() if name not in OWN},
            )


class Running(Metric):
    """Another metric over the last `window` updates. ``forward`` gives the value of the batch."""

    direct = True
    base_metric: Metric

    def __init__(self, base_metric: Metric, window: int = 5) -> None:
        super().__init__()
        check_metric(base_metric, "argument `metric`")
        if not (isinstance(window, int) and window > 0):
            raise ValueError(f"Expected argument `window` to be a positive integer but got {window}")
        self.base_metric = base_metric
        self.window = window
        for name, part in base_metric.statistics():
            self.use(f"window_{name}", Window(part, window))

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch, in the place of the oldest."""
        self.forward(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.base_metric.reset()
        self.base_metric.update(*args, **kwargs)
        for window in self._windows():
            window.to(window.inner.device)
            window.push()
        self._ledger.updated_once(torch.compiler.is_compiling())
        return self.base_metric.value()

    def value(self) -> Any:
        inner = [window.inner for window in self._windows()]
        before = swap(inner, [window.joined() for window in self._windows()])
        try:
            return self.base_metric.value()
        finally:
            swap(inner, before)

    def _windows(self) -> list[Window]:
        return [part for part in self._parts if isinstance(part, Window)]

    def reset(self) -> None:
        super().reset()
        self.base_metric.reset()

    @contextmanager
    def batch_only(self) -> Iterator[None]:
        """Inside the block, ``value`` is that of the last batch."""
        outer = self.__dict__.get("value")
        self.__dict__["value"] = self.base_metric.value
        try:
            yield
        finally:
            self.__dict__.pop("value") if outer is None else self.__dict__.update(value=outer)


class RunningMean(Running):
    """The mean over the last `window` updates."""

    def __init__(self, window: int = 5, nan_strategy: Any = "warn", **kwargs: Any) -> None:
        super().__init__(MeanMetric(nan_strategy=nan_strategy, **kwargs), window)


class RunningSum(Running):
    """The sum over the last `window` updates."""

    def __init__(self, window: int = 5, nan_strategy: Any = "warn", **kwargs: Any) -> None:
        super().__init__(SumMetric(nan_strategy=nan_strategy, **kwargs), window)
