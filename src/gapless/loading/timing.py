"""Time a loader while a loop uses it, by two readings of the clock per batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from gapless.loading.batches import setting_of
from gapless.loading.measure_loop import count_ready
from gapless.model.loading import Demand, Seen

_WARM_UP_STEPS = 2
"""First steps, which are not counted."""


class Timed:
    """``for batch in timed(loader)``: the same batches, and how long the loop waited for them.

    `seen` is what was measured so far, `demand` the loop's step without its input: pass it to
    :func:`diagnose` as ``step=loop.demand.step / 1e9, busy=loop.demand.busy``.
    """

    def __init__(
        self,
        loader: Any,
        clock: Callable[[], int] = time.perf_counter_ns,
        cpu: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self._loader, self._clock, self._cpu = loader, clock, cpu
        self._steps = self._total = self._wait = self._rest_cpu = self._ready = 0
        self._first = -1

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        clock, cpu = self._clock, self._cpu
        request_time, number = clock(), 0
        iterator = iter(self._loader)
        while True:
            ready = count_ready(iterator)
            try:
                batch = next(iterator)
            except StopIteration:
                return
            got = clock()
            if not number and self._first < 0:
                self._first = got - request_time
            used = cpu()
            yield batch
            now = clock()
            computed = cpu()
            if number >= _WARM_UP_STEPS:  # a step lasts from the request for its batch to the next request
                self._steps += 1
                self._total += now - request_time
                self._wait += got - request_time
                self._rest_cpu += computed - used
                self._ready += ready
            request_time, number = now, number + 1

    @property
    def seen(self) -> Seen:
        """The measurement so far; without batches if there were too few."""
        steps = max(self._steps, 1)
        setting = setting_of(self._loader)
        return Seen(
            setting=setting,
            batches=self._steps,
            step=self._total / steps,
            wait=self._wait / steps,
            rest_cpu=self._rest_cpu / steps,
            first=float(max(self._first, 0)),
            ready=self._ready / steps if setting.workers else -1.0,
        )

    @property
    def demand(self) -> Demand:
        """The loop's own step, without its input."""
        measured = self.seen
        rest = measured.step - measured.wait
        return Demand(step=rest, busy=min(1.0, measured.rest_cpu / rest) if rest > 0 else 1.0, source="timed")


def timed(loader: Any) -> Timed:
    """Wrap `loader` to be used in its place; see :class:`Timed`."""
    return Timed(loader)
