"""Measure steps on the GPU before a profiler runs: what its recording adds to them is told by comparison."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

_MIN_EVENTS = 3
"""Fewer events are of one step at most, which may be slow by chance."""


class StepClock:
    """Marks the end of steps with events of the GPU, which cost the CPU nothing and wait for nothing.

    The CPU may run ahead of the GPU, so that the time between its own marks says nothing about a step.
    """

    def __init__(self, make_event: Callable[[], Any] | None) -> None:
        self._make_event = make_event
        self._events: list[Any] = []

    def mark(self) -> None:
        """Mark the end of a step, at which the GPU has not arrived yet."""
        if self._make_event is not None:
            event = self._make_event()
            event.record()
            self._events.append(event)

    def read(self) -> int:
        """Return the median length of the marked steps in nanoseconds, and forget them; 0 if there are few.

        The first two end the warm-up. Waits for the GPU.
        """
        events, self._events = self._events[1:], []
        if len(events) < _MIN_EVENTS:
            return 0
        events[-1].synchronize()
        lengths = [first.elapsed_time(second) for first, second in pairwise(events)]
        return int(1e6 * median(lengths))
