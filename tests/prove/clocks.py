"""A clock that only moves when something takes time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class FakeMeter:
    """A `Meter` of a machine with a device that is `behind` the host, or of one without."""

    def __init__(self, clock: str = "CPU") -> None:
        self.clock = clock
        self.time = 0.0
        self.busy_until = 0.0
        self.log: list[str] = []

    def now(self) -> float:
        return self.time

    def synchronize(self) -> None:
        self.time = max(self.time, self.busy_until)

    def event(self) -> Any:
        return max(self.time, self.busy_until) if self.clock == "GPU" else None

    def between(self, begin: Any, end: Any) -> float:
        return float(end - begin)

    def passes(self, host: float, device: float = 0.0) -> None:
        """The host works so long, and has the device work so long after all it has been given before."""
        self.time += host
        if device:
            self.busy_until = max(self.time, self.busy_until) + device


class FakeRunner:
    """Calls that take as long as `lengths` say, over and over, on the host and on the device."""

    def __init__(
        self,
        meter: FakeMeter,
        name: str,
        lengths: Sequence[float] | Callable[[int], float],
        device: float = 0.0,
        most: int = 1_000_000,
    ) -> None:
        self.meter, self.name, self.device, self.max_calls = meter, name, device, most
        self.length = lengths if callable(lengths) else lambda number: lengths[number % len(lengths)]
        self.calls = 0
        self.prepared: list[int] = []

    def prepare(self, calls: int) -> None:
        self.prepared.append(calls)
        self.meter.passes(0.5)  # whatever it takes, it is not timed

    def run(self, calls: int) -> None:
        self.meter.log.append(self.name)
        for _ in range(calls):
            self.meter.passes(self.length(self.calls), self.device)
            self.calls += 1
