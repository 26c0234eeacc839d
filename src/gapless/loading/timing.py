"""A loader timed while a loop uses it: two readings of the clock for each batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from gapless.loading.batches import setting_of
from gapless.loading.measure_loop import queued
from gapless.model.loading import Demand, Seen

_SKIP = 2
"""First steps, which warm up."""


class Timed:
    """``for batch in timed(loader)``: the same batches, and how long the loop waited for them.

    `seen` tells what was seen so far, `demand` what the loop's steps take without their input: give it to
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
        asked, number = clock(), 0
        iterator = iter(self._loader)
        while True:
            ready = queued(iterator)
            try:
                batch = next(iterator)
            except StopIteration:
                return
            got = clock()
            if not number and self._first < 0:
                self._first = got - asked
            used = cpu()
            yield batch
            now = clock()
            computed = cpu()
            if number >= _SKIP:  # a step is from asking for its batch to asking for the next one
                self._steps += 1
                self._total += now - asked
                self._wait += got - asked
                self._rest_cpu += computed - used
                self._ready += ready
            asked, number = now, number + 1

    @property
    def seen(self) -> Seen:
        """What was seen so far; no batches where there were too few."""
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
        seen = self.seen
        rest = seen.step - seen.wait
        return Demand(step=rest, busy=min(1.0, seen.rest_cpu / rest) if rest > 0 else 1.0, source="timed")


def timed(loader: Any) -> Timed:
    """`loader`, to be used in its place; see :class:`Timed`."""
    return Timed(loader)
