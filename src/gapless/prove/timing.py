"""Time measured properly: warmed up, in turn, over many calls, the device done when the clock is read."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple, Protocol

from gapless.model.proof import Duration, Faster, Interval, Timing

LEAST_ROUNDS = 8
"""With fewer blocks no order statistics bound the median with a probability of 99 %."""

MOST_ROUNDS = 400
_BLOCK = 0.02
_MOST_CALLS = 1000
_WARM_CALLS = 3
_WARM_SHARE = 0.1
_NEAR = 0.01
"""A difference of less than that is nobody's reason to change code, however sure it is."""


class Meter(Protocol):
    """A clock in seconds, and a device to wait for. `event` is a moment on the device, None without one."""

    clock: str

    def now(self) -> float: ...

    def synchronize(self) -> None: ...

    def event(self) -> Any: ...

    def between(self, begin: Any, end: Any) -> float: ...


class CpuMeter:
    """The clock of a machine whose calls are done when they return."""

    clock = "CPU"

    def now(self) -> float:
        return time.perf_counter()

    def synchronize(self) -> None:
        """Nothing is left to wait for."""

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
        made = self._cuda.Event(enable_timing=True)
        made.record()
        return made

    def between(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) / 1e3


class Runner(Protocol):
    """Something that can be called many times: `prepare` is not timed, `run` is. `most` bounds a block."""

    most: int

    def prepare(self, calls: int) -> None: ...

    def run(self, calls: int) -> None: ...


class Sample(NamedTuple):
    """One block: seconds per call until the device was done, until the host was free, and on the device."""

    total: float
    host: float
    device: float | None


@dataclass
class Stopwatch:
    """Measures two runners for about `seconds`."""

    meter: Meter
    seconds: float = 5.0

    def measure(self, before: Runner, after: Runner) -> Timing:
        """Both in turn, block by block, A B A B …, for as long as the budget lasts, eight rounds at least."""
        sides = (before, after)
        with _undisturbed():
            began = self.meter.now()
            paces = [self._warm(one) for one in sides]
            calls = tuple(self._calls(pace, one.most) for pace, one in zip(paces, sides, strict=True))
            samples: tuple[list[Sample], list[Sample]] = ([], [])
            while len(samples[0]) < LEAST_ROUNDS or (
                self.meter.now() - began < self.seconds and len(samples[0]) < MOST_ROUNDS
            ):
                for one, own, count in zip(sides, samples, calls, strict=True):
                    own.append(self._block(one, count))
        return timing(samples, (calls[0], calls[1]), self.meter.clock)

    def _warm(self, one: Runner) -> float:
        """Call `one` until it is warm, and tell how long a call takes then, in seconds."""
        limit = self.meter.now() + _WARM_SHARE * self.seconds
        pace = math.inf
        done = 0
        while done < _WARM_CALLS or (self.meter.now() < limit and done < _MOST_CALLS):
            pace = min(pace, self._block(one, 1).total)
            done += 1
        return pace

    def _calls(self, pace: float, most: int) -> int:
        """Calls in a block: enough for the clock and for what surrounds a block not to matter."""
        block = min(_BLOCK, self.seconds / (8 * LEAST_ROUNDS))
        return max(1, min(_MOST_CALLS, most, round(block / pace) if pace > 0 else _MOST_CALLS))

    def _block(self, one: Runner, calls: int) -> Sample:
        meter = self.meter
        one.prepare(calls)
        meter.synchronize()
        start = meter.event()
        began = meter.now()
        one.run(calls)
        returned = meter.now()
        end = meter.event()
        meter.synchronize()
        ended = meter.now()
        device = meter.between(start, end) / calls if start is not None else None
        return Sample((ended - began) / calls, (returned - began) / calls, device)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Without the garbage collector, which comes when it likes."""
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


# -- what the samples say --------------------------------------------------------------------------


def timing(samples: tuple[Sequence[Sample], Sequence[Sample]], calls: tuple[int, int], clock: str) -> Timing:
    """What blocks that were measured in turn say."""
    pairs = zip(*samples, strict=True)
    ratio = interval([old.total / new.total if new.total > 0 else 1.0 for old, new in pairs], miss=0.01)
    return Timing(
        before=_duration(samples[0]),
        after=_duration(samples[1]),
        ratio=ratio,
        faster=faster(ratio),
        clock="GPU" if clock == "GPU" else "CPU",
        calls=calls,
        rounds=len(samples[0]),
    )


def faster(ratio: Interval) -> Faster:
    """Which side is faster, by the interval of time before over time after: it must be clear of 1."""
    if ratio.low > 1 + _NEAR:
        return "after"
    if ratio.high < 1 - _NEAR:
        return "before"
    return "neither"


def _duration(samples: Sequence[Sample]) -> Duration:
    total = interval([1e9 * one.total for one in samples])
    device = [1e9 * one.device for one in samples if one.device is not None]
    if not device:
        return Duration(total=total)
    return Duration(total=total, host=interval([1e9 * one.host for one in samples]), device=interval(device))


def interval(values: Sequence[float], miss: float = 0.05) -> Interval:
    """The median of `values`, between the order statistics that miss it with a probability of at most `miss`.

    No distribution is assumed. Fewer than six values cannot tell (eight at 1 %); their extremes are given.
    """
    ordered = sorted(values)
    cut = _rank(len(ordered), miss / 2)
    return Interval(median=median(ordered), low=ordered[cut], high=ordered[-1 - cut])


def _rank(count: int, tail: float) -> int:
    """How many values may be left out at either end: the largest k with P(Binomial(n, 1/2) <= k) <= tail."""
    left, below = 0, 0.5**count
    while left + 1 <= (count - 1) // 2:
        below += math.comb(count, left + 1) * 0.5**count
        if below > tail:
            break
        left += 1
    return left
