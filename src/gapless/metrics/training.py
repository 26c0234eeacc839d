"""Measure how fast a training loop runs with the device's clock; the host never waits for it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.metric import Metric
from gapless.metrics.statistic import Slot, State, Statistic


class Mark(Protocol):
    """A moment in a device's work."""

    def passed(self) -> bool:
        """Whether the device has reached it; does not wait."""

    def since(self, other: Any) -> float:
        """Return the seconds from `other` to this mark; both must have passed."""


class EventMark:
    """The moment when a GPU has finished the work queued on its current stream so far."""

    def __init__(self, device: torch.device) -> None:
        self.event = torch.cuda.Event(enable_timing=True)
        self.event.record(torch.cuda.current_stream(device))

    def passed(self) -> bool:
        return bool(self.event.query())

    def since(self, other: EventMark) -> float:
        return float(other.event.elapsed_time(self.event)) / 1e3


class HostMark:
    """The moment of its creation, on the host."""

    def __init__(self, device: torch.device) -> None:
        self.at = time.perf_counter()

    def passed(self) -> bool:
        return True

    def since(self, other: HostMark) -> float:
        return self.at - other.at


def mark(device: torch.device) -> Mark:
    """Return a mark in the work of `device`."""
    return EventMark(device) if device.type == "cuda" else HostMark(device)


class TimedStep(NamedTuple):
    """The end of a step, and the items that it processed."""

    end: Mark
    items: Any


class StepPace(Statistic):
    """The number of finished steps, the seconds between their ends, and their items."""

    def __init__(self, counts_items: bool, clock: Callable[[torch.device], Mark]) -> None:
        self.counts_items = counts_items
        self.clock = clock
        self._last: Mark | None = None
        self._pending: deque[TimedStep] = deque()
        numbers = {"items": Slot(dtype=torch.float64), "seconds": Slot(dtype=torch.float64)}
        # Summed over processes, `processes` is how many had steps; `merge` keeps it at 1 over time.
        counts = {"steps": Slot(), "processes": Slot()}
        super().__init__((counts_items, clock), {**numbers, **counts}, checked=False)

    def count(self, batch: Batch) -> None:
        items: Any = batch.args[0] if self.counts_items else 0
        if isinstance(items, Tensor):
            items = items.sum(dtype=self.state["items"].dtype)
        self._pending.append(TimedStep(self.clock(self.device), items))
        while self._pending and self._pending[0].end.passed():
            self._add(self._pending.popleft())

    def _add(self, step: TimedStep) -> None:
        before, self._last = self._last, step.end
        if before is not None:
            if self.counts_items:
                self.state["items"].add_(step.items)
            self.state["seconds"].add_(step.end.since(before))
            self.state["steps"].add_(1)
            self.state["processes"].fill_(1)

    def merge(self, into: State, other: State) -> None:
        for name in ("items", "seconds", "steps"):
            into[name].add_(other[name])
        torch.maximum(into["processes"], other["processes"], out=into["processes"])

    def reset(self, cleared: bool = False) -> None:
        super().reset(cleared)
        self._forget()

    def to(self, device: torch.device) -> None:
        if device != self.device:
            self._forget()
        super().to(device)

    def _forget(self) -> None:
        self._last = None
        self._pending = deque()

    def __getstate__(self) -> dict[str, Any]:
        # Marks are valid in one process and on one device only.
        return {**self.__dict__, "_last": None, "_pending": deque()}


class StepTime(Metric):
    """The mean time of a step in seconds, on the device of the metric.

    Call ``update`` at the end of each step; the first after a reset starts the clock. On a GPU an event is
    recorded after the step's work, and a step counts once the device has passed it, so results lag a few
    steps behind the host. On the CPU the host's clock is read. In a collection it accepts any arguments. Not
    for compiled functions and CUDA graphs, which run steps without the host.

    Args:
        clock: returns a :class:`Mark` for a device.
    """

    higher_is_better = False
    pace: StepPace

    def __init__(self, clock: Callable[[torch.device], Mark] = mark, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.use("pace", StepPace(False, clock))

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Mark the end of a step."""
        self.observe(*args)

    def value(self) -> Tensor:
        state = self.pace.state
        return (state["seconds"] / state["steps"]).to(self.dtype)


class Throughput(Metric):
    """Items (samples, tokens) per second on the device of the metric, or on all processes' together.

    Call ``update`` at the end of each step with the step's items; the first after a reset starts the clock,
    and its items do not count. :class:`StepTime` explains when a step counts.
    """

    higher_is_better = True
    pace: StepPace

    def __init__(self, clock: Callable[[torch.device], Mark] = mark, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.use("pace", StepPace(True, clock))

    def update(self, items: float | Tensor) -> None:
        """Mark the end of a step of `items` items: a number, or a tensor that sums to it."""
        self.observe(items)

    def value(self) -> Tensor:
        state = self.pace.state
        return (state["items"] * state["processes"] / state["seconds"]).to(self.dtype)
