"""Measure time: after a warm-up, in alternation, over many calls, with the device idle at each reading."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple, Protocol

from gapless.cores import no_collection
from gapless.model.proof import Duration, Faster, Interval, Timing

MIN_ROUNDS = 8
"""With fewer blocks no order statistics bound the median with a probability of 99 %."""

MAX_ROUNDS = 400
"""More blocks hardly narrow the interval."""
_BLOCK_SECONDS = 0.02
"""Length of a block: long against the clock's resolution, short against drifts of the machine."""
_MAX_CALLS = 1000
"""Calls in a block, so that fast calls do not fill the device's queue for long."""
_MIN_WARM_CALLS = 3
"""Warm-up calls: compilers and caching allocators settle within the first two."""
_WARM_SHARE = 0.1
"""Share of the budget spent on the warm-up at most."""
_MIN_DIFFERENCE = 0.01
"""A smaller difference is no reason to change code, however certain it is."""


class Meter(Protocol):
    """A clock in seconds, and a device to wait for; `event` is a moment on the device, None without one."""

    clock: str

    def now(self) -> float: ...

    def synchronize(self) -> None: ...

    def event(self) -> Any: ...

    def between(self, begin: Any, end: Any) -> float: ...


class CpuMeter:
    """The clock of a machine whose calls are finished when they return."""

    clock = "CPU"

    def now(self) -> float:
        return time.perf_counter()

    def synchronize(self) -> None:
        """Do nothing: there is no device to wait for."""

    def event(self) -> Any:
        return None

    def between(self, begin: Any, end: Any) -> float:
        return 0.0


class GpuMeter:
    """The clock of a machine with a GPU, and events on its current stream."""

    clock = "GPU"

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda

    def now(self) -> float:
        return time.perf_counter()

    def synchronize(self) -> None:
        self._cuda.synchronize()

    def event(self) -> Any:
        timing_event = self._cuda.Event(enable_timing=True)
        timing_event.record()
        return timing_event

    def between(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) / 1e3


class Runner(Protocol):
    """Something that can be called many times: `prepare` is not timed, `run` is; `max_calls` bounds a
    block."""

    max_calls: int

    def prepare(self, calls: int) -> None: ...

    def run(self, calls: int) -> None: ...


class Sample(NamedTuple):
    """Seconds per call in one block: until the device finished, until the host was free, and on the
    device."""

    total: float
    host: float
    device: float | None


@dataclass
class Stopwatch:
    """Measures two runners for about `seconds`."""

    meter: Meter
    seconds: float = 5.0

    def measure(self, before: Runner, after: Runner) -> Timing:
        """Measure both in alternation, block by block, until the budget is spent, for at least eight
        rounds."""
        sides = (before, after)
        gc.collect()
        with no_collection():  # it would run at random times
            began = self.meter.now()
            paces = [self._warm(side) for side in sides]
            calls = tuple(self._calls(pace, side.max_calls) for pace, side in zip(paces, sides, strict=True))
            samples: tuple[list[Sample], list[Sample]] = ([], [])
            while len(samples[0]) < MIN_ROUNDS or (
                self.meter.now() - began < self.seconds and len(samples[0]) < MAX_ROUNDS
            ):
                for side, own, count in zip(sides, samples, calls, strict=True):
                    own.append(self._block(side, count))
        return summarize_samples(samples, (calls[0], calls[1]), self.meter.clock)

    def _warm(self, runner: Runner) -> float:
        """Call `runner` until it is warm; return the shortest call in seconds."""
        limit = self.meter.now() + _WARM_SHARE * self.seconds
        pace = math.inf
        done = 0
        while done < _MIN_WARM_CALLS or (self.meter.now() < limit and done < _MAX_CALLS):
            pace = min(pace, self._block(runner, 1).total)
            done += 1
        return pace

    def _calls(self, pace: float, most: int) -> int:
        """Return the calls per block: enough for the clock's resolution and the overhead of a block."""
        block = min(_BLOCK_SECONDS, self.seconds / (8 * MIN_ROUNDS))
        return max(1, min(_MAX_CALLS, most, round(block / pace) if pace > 0 else _MAX_CALLS))

    def _block(self, runner: Runner, calls: int) -> Sample:
        meter = self.meter
        runner.prepare(calls)
        meter.synchronize()
        start = meter.event()
        began = meter.now()
        runner.run(calls)
        returned = meter.now()
        end = meter.event()
        meter.synchronize()
        ended = meter.now()
        device = meter.between(start, end) / calls if start is not None else None
        return Sample((ended - began) / calls, (returned - began) / calls, device)


# -- what the samples say --------------------------------------------------------------------------


def summarize_samples(
    samples: tuple[Sequence[Sample], Sequence[Sample]], calls: tuple[int, int], clock: str
) -> Timing:
    """Return the timing of blocks that were measured in alternation."""
    pairs = zip(*samples, strict=True)
    ratio = median_interval(
        [old.total / new.total if new.total > 0 else 1.0 for old, new in pairs], miss=0.01
    )
    return Timing(
        before=_duration(samples[0]),
        after=_duration(samples[1]),
        ratio=ratio,
        faster=faster_side(ratio),
        clock="GPU" if clock == "GPU" else "CPU",
        calls=calls,
        rounds=len(samples[0]),
    )


def faster_side(ratio: Interval) -> Faster:
    """Return the faster side by the interval of time before over time after, which must be clear of 1."""
    if ratio.low > 1 + _MIN_DIFFERENCE:
        return "after"
    if ratio.high < 1 - _MIN_DIFFERENCE:
        return "before"
    return "neither"


def _duration(samples: Sequence[Sample]) -> Duration:
    total = median_interval([1e9 * sample.total for sample in samples])
    device = [1e9 * sample.device for sample in samples if sample.device is not None]
    if not device:
        return Duration(total=total)
    return Duration(
        total=total,
        host=median_interval([1e9 * sample.host for sample in samples]),
        device=median_interval(device),
    )


def median_interval(values: Sequence[float], miss: float = 0.05) -> Interval:
    """Return the median of `values`, between order statistics that miss it with at most this probability.

    No distribution is assumed. Fewer than six values (eight at 1 %) are too few; their extremes are returned.
    """
    ordered = sorted(values)
    cut = _outer_rank(len(ordered), miss / 2)
    return Interval(median=median(ordered), low=ordered[cut], high=ordered[-1 - cut])


def _outer_rank(count: int, tail: float) -> int:
    """Return how many values to leave out at either end: the largest k with P(Binomial(n, 1/2) <= k) <=
    tail."""
    left, below = 0, 0.5**count
    while left + 1 <= (count - 1) // 2:
        below += math.comb(count, left + 1) * 0.5**count
        if below > tail:
            break
        left += 1
    return left
