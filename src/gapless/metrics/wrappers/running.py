"""Metrics over the last updates."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gapless.metrics import declared
from gapless.metrics.aggregation import MeanMetric, SumMetric
from gapless.metrics.breadth import Breadth
from gapless.metrics.metric import Metric
from gapless.metrics.rows import Rows
from gapless.metrics.statistic import Slot, State, Statistic, swap_states
from gapless.metrics.wrappers.transparent import check_metric
from gapless.trees import map_tensors

WINDOW_SLOTS = ("next", "faults", "clean")
"""Slots of a window beside the rows of the inner statistic's slots."""


class Window(Statistic):
    """The states of another statistic for its last updates, one row each, in a ring buffer."""

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
        inner.silent = True  # its bad values are counted here

    def push(self) -> None:
        """Overwrite the oldest row with the inner statistic's state, which is that of one batch."""
        at = self.state["next"] % self.window
        for name in self.slots:
            if name not in WINDOW_SLOTS:
                self.state[name].index_copy_(0, at, self.inner.state[name].unsqueeze(0))
        self.state["next"].add_(1)
        faults = self.inner.faults() if self.checked else None
        if faults is not None:
            self.state["faults"].add_(faults)
            self.note()

    @property
    def saved_slots(self) -> dict[str, Slot]:
        rows = {
            n: replace(slot, shape=(self.window, *slot.shape)) for n, slot in self.inner.saved_slots.items()
        }
        return {**rows, **{name: self.slots[name] for name in WINDOW_SLOTS}}

    def size_of(self, slot: str, shape: Sequence[int], own: Sequence[int]) -> str:
        updates = Breadth("update", self.window, 0).words(shape[:1], own[:1])
        inner = self.inner.size_of(slot, shape[1:], own[1:])
        return f"{updates} of {inner}" if updates and inner else updates

    def decode(self, state: State) -> State:
        rows = self.inner.decode({name: value for name, value in state.items() if name not in WINDOW_SLOTS})
        return {**rows, **{name: state[name] for name in WINDOW_SLOTS}}

    def encode(self, saved: State) -> State:
        rows = self.inner.encode({name: value for name, value in saved.items() if name not in WINDOW_SLOTS})
        return {**rows, **{name: saved[name] for name in WINDOW_SLOTS}}

    def faults(self) -> Tensor:
        return self.state["faults"]

    def complaint(self, count: int) -> str:
        return self.inner.complaint(count)

    def merged_state(self) -> State:
        """Return the merged state of all batches in the window."""
        rows = [
            {name: self.state[name][i] for name in self.inner.slots if name != "clean"}
            for i in range(self.window)
        ]
        start = {name: value.clone() for name, value in rows[0].items()}
        for row in rows[1:]:
            self.inner.merge(start, row)
        return {**start, "clean": self.inner.state["clean"]}

    def merge_folded(self, into: State, other: State) -> None:
        for i in range(self.window):
            self.inner.merge_folded(
                {name: value[i] for name, value in into.items() if name not in WINDOW_SLOTS},
                {name: value[i] for name, value in other.items() if name not in WINDOW_SLOTS},
            )


class Running(Metric):
    """Computes another metric over the last `window` updates. ``forward`` returns the value of the batch.

    Args:
        base_metric: the metric; one with declared states must have ``full_state_update = False``, since the
            states of the updates are merged.
        window: how many updates.
    """

    direct = True
    base_metric: Metric

    def __init__(self, base_metric: Metric, window: int = 5) -> None:
        super().__init__()
        base_metric = check_metric(base_metric, "argument `metric`")
        if not (isinstance(window, int) and window > 0):
            raise ValueError(f"Expected argument `window` to be a positive integer but got {window}")
        if base_metric.full_state_update is not False:
            state_update = base_metric.full_state_update
            raise ValueError(f"Expected attribute `full_state_update` set to `False` but got {state_update}")
        self.base_metric = base_metric
        self.window = window
        self._declared: deque[dict[str, Any]] = deque(maxlen=window)
        for name, part in base_metric.statistics():
            self.use(f"window_{name}", Window(part, window))

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch in place of the oldest."""
        base = self.base_metric
        base.reset()
        base.update(*args, **kwargs)
        for window in self._windows():
            window.to(window.inner.device)
            window.push()
        if base._own_defaults:
            self._declared.append(declared.copy_states(base))
        self.record_update()

    @torch.jit.unused
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch and return the value of this batch alone."""
        self.update(*args, **kwargs)
        with self.base_metric.sync_context(should_sync=self.base_metric.dist_sync_on_step):
            result = map_tensors(self.base_metric._squeezed_result(), Tensor.clone)
        self.__dict__["_forward_cache"] = result
        return result

    def value(self) -> Any:
        inner = [window.inner for window in self._windows()]
        before = swap_states(inner, [window.merged_state() for window in self._windows()])
        held = declared.swap_states(self.base_metric, self._merge_declared_states())
        try:
            return self.base_metric._result()
        finally:
            swap_states(inner, before)
            declared.swap_states(self.base_metric, held)

    def _merge_declared_states(self) -> dict[str, Any]:
        """Merge the declared states of all updates in the window, over all processes if synced."""
        base = self.base_metric
        if not base._own_defaults:
            return {}
        last = declared.copy_states(base)
        declared.reset_states(base)
        for count, states in enumerate(self._declared, 1):
            if count > 1:
                declared.merge_states(base, declared.swap_states(base, states), count)
            else:
                declared.swap_states(base, states)
        whole = declared.copy_states(base)
        if self._is_synced:
            whole = declared.reduce(base, self.process_group, self.dist_sync_fn)
        declared.swap_states(base, last)
        return whole

    def _windows(self) -> list[Window]:
        return [part for part in self.all_statistics() if isinstance(part, Window)]

    def reset(self) -> None:
        super().reset()
        self._declared.clear()
        self.base_metric.reset()

    @contextmanager
    def batch_only(self, graph: bool = False) -> Iterator[None]:
        """Inside the block, ``value`` is that of the last batch."""
        outer = self.__dict__.get("value")
        self.__dict__["value"] = self.base_metric._result
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
