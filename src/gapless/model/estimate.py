"""`Estimate`: what a step would take on the emulated GPU, and why that may be wrong."""

from __future__ import annotations

import msgspec

from gapless.model.optimizer import OptimizerUse
from gapless.model.profile import Prices
from gapless.model.programme import HostSpeed
from gapless.model.ranges import MIN_SAVING_SHARE, SMALL_SAVING_SHARE, Range
from gapless.model.source import SourceLine

__all__ = [
    "BATCHES_IN_TIME",
    "MIN_CLEAR_SHARE",
    "MIN_SAVING_SHARE",
    "MIN_SURE_SHARE",
    "SMALL_SAVING_SHARE",
    "Compiling",
    "Count",
    "Estimate",
    "PlaceSaving",
    "Range",
    "StepThroughput",
    "with_waiting",
]  # fmt: skip

BATCHES_IN_TIME = "every batch is there in time"
"""Assumed of a step unless it is shown to wait for data."""

MIN_CLEAR_SHARE, MIN_SURE_SHARE = 0.7, 0.95
"""Shares of sampled machines from which a step's limiter is reported, and reported as almost certain."""


def with_waiting(step: Range, waiting: Range) -> Range:
    """Return the length of a step plus its wait for batches, which is longest when the step is shortest.

    >>> with_waiting(Range(4, 5, 8), Range(2, 5, 6))
    Range(least=10, likely=10, most=10)
    """
    likely = step.likely + waiting.likely
    ends = step.least + waiting.most, likely, step.most + waiting.least
    return Range(min(ends), likely, max(ends))


class Count(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A number per step on this rank; `told` is the source of it, in words."""

    number: float = 0.0
    told: str = ""


class StepThroughput(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The work of a mean step.

    `samples` and `tokens` are None if unknown. `flops` are those that the model needs in products,
    convolutions and attention (a multiplication and an addition are two; attention counts in full),
    `repeated` those that checkpointing recomputes. `peak` is the TFLOP/s of the GPU in `unit`, the type in
    which most of them run. `phases` are nanoseconds of the GPU by phase: forward, recomputation, backward,
    optimizer.

    >>> StepThroughput(flops=312e9, peak=312.0).utilisation(2_000_000)
    0.5
    """

    samples: Count | None = None
    tokens: Count | None = None
    flops: float = 0.0
    repeated: float = 0.0
    unit: str = ""
    peak: float = 0.0
    phases: dict[str, int] = {}

    def utilisation(self, step: float) -> float:
        """Return the share of the peak that the model's flops reach in a step of `step` nanoseconds."""
        return self.flops / (step * self.peak * 1e3) if step > 0 and self.peak else 0.0


class Compiling(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A step with all but the optimizer compiled: kernels per step, its length, and the saving, in
    nanoseconds."""

    launches: float = 0.0
    step: Range = Range()
    saved: Range = Range()


class PlaceSaving(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a step saves if nothing of a file, or of a `function` in it, waits any more: nanoseconds, from one
    replay without all of its `findings`, never a sum of their prices. `line` is the first of their lines.
    """

    file: str
    function: str = ""
    findings: int = 0
    saved: Range = Range()
    line: SourceLine | None = None


class Estimate(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The estimated step on the GPU `gpu`; times in nanoseconds per step.

    - `step`: its length if batches are in time; `waiting`: its wait for them, longest if the step is
      shortest; `overlapped`: workers make batches during the step, so that a shorter step waits longer;
      `whole`: the step with its wait.
    - `device`: time in which the device has work; `host`: the host's time besides its waits; `blocked`: its
      time in waits.
    - `prices`: of one step, referred to by `Finding.price`.
    - `looked_at`: the number of recorded steps.
    - `calibrated`: the path of the real profile with the times ("": estimates); `covered`: its share of the
      device's time; `uncalibrated`: the step without it; `profiled`: the length of its own steps (-1:
      unknown).
    - `assumptions`: sentences.
    - `throughput`: the work of a step; `communication`: the time of its collectives, one after the other (-1:
      none, or not recorded).
    - `limiter`: what limits the step (``host``: the CPU, launching; ``device``: the GPU; ``input``;
      ``communication``) in most of the sampled machines, also as `prices.limiter`; `sure`: their share,
      unclear below `MIN_CLEAR_SHARE`; `limiters`: the share of each, the largest first.
    - `speed`: the host's, if measured or given.
    - `reasons`: why the numbers are bounds; `refused`: why there are none.
    - `launches`: kernels per step; `eager`: without compilation (0: nothing is compiled); `compiling`: the
      step if it were compiled.
    - `optimizers`: those that stepped.
    - `places`: what all findings of a file or function cost together, the dearest first.

    A `Range` holds four in five of the sampled machines (docs/price.md).
    """

    gpu: str = ""
    step: Range = Range()
    device: int = 0
    host: int = 0
    prices: Prices = Prices()
    saved: Range = Range()
    blocked: Range = Range()
    looked_at: int = 0
    calibrated: str = ""
    covered: float = 0.0
    assumptions: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    refused: str = ""
    throughput: StepThroughput | None = None
    communication: int = -1
    limiter: str = ""
    sure: float = 0.0
    limiters: dict[str, float] = {}
    speed: HostSpeed | None = None
    uncalibrated: int = -1
    profiled: int = -1
    launches: float = 0.0
    eager: float = 0.0
    compiling: Compiling | None = None
    optimizers: tuple[OptimizerUse, ...] = ()
    waiting: Range = Range()
    overlapped: bool = False
    places: tuple[PlaceSaving, ...] = ()

    @property
    def whole(self) -> Range:
        """The step including its wait for batches, as the run will have it."""
        return with_waiting(self.step, self.waiting)

    @property
    def clear(self) -> bool:
        """Whether the limiter is the same in clearly more than half of the drawn machines."""
        return self.sure >= MIN_CLEAR_SHARE
