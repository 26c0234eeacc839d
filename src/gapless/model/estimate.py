"""`Estimate`: what a step would take on the emulated GPU, and why that may be off."""

from __future__ import annotations

import msgspec

from gapless.model.optimizer import OptimizerUse
from gapless.model.profile import Prices
from gapless.model.programme import HostSpeed
from gapless.model.ranges import MIN_SAVING_SHARE, SMALL_SAVING_SHARE, Range

__all__ = [
    "BATCHES_IN_TIME",
    "MIN_CLEAR_SHARE",
    "MIN_SAVING_SHARE",
    "MIN_SURE_SHARE",
    "SMALL_SAVING_SHARE",
    "Compiling",
    "Count",
    "Estimate",
    "Range",
    "Throughput",
    "with_waiting",
]  # fmt: skip

BATCHES_IN_TIME = "every batch is there in time"
"""Assumed of a step unless something shows that it waits for data."""

MIN_CLEAR_SHARE, MIN_SURE_SHARE = 0.7, 0.95
"""Shares of drawn machines from which a step's limiter is reported, and reported as almost certain."""


def with_waiting(step: Range, waiting: Range) -> Range:
    """Return the length of a step plus its wait for batches, which is longest when the step is shortest.

    >>> with_waiting(Range(4, 5, 8), Range(2, 5, 6))
    Range(least=10, likely=10, most=10)
    """
    likely = step.likely + waiting.likely
    ends = step.least + waiting.most, likely, step.most + waiting.least
    return Range(min(ends), likely, max(ends))


class Count(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A number per step on this rank; `told` says what it is known from."""

    number: float = 0.0
    told: str = ""


class Throughput(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a step does, in the mean.

    `samples` and `tokens` are None where nothing tells them. `flops` are those that the model needs, of
    products, convolutions and attention (a multiplication and an addition are two; attention counts in full),
    `repeated` those that checkpointing computes again. `peak` are the TFLOP/s of the GPU in `unit`, in which
    most of them run. `phases` are nanoseconds of the GPU by phase: forward, recomputation, backward,
    optimizer.

    >>> Throughput(flops=312e9, peak=312.0).utilisation(2_000_000)
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
        """Return the share of the peak that the model's flops reach in a step of that many nanoseconds."""
        return self.flops / (step * self.peak * 1e3) if step > 0 and self.peak else 0.0


class Compiling(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A step of which all but the optimizer were compiled: kernels per step, its length, and how much shorter
    it is than now, in nanoseconds."""

    launches: float = 0.0
    step: Range = Range()
    saved: Range = Range()


class Estimate(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A step on the GPU `gpu`, imagined; all times in nanoseconds per step.

    `step` is its length, `device` the time in which the device has work, `host` what the host needs besides
    its waits, `blocked` how long it is blocked in syncs. `prices` are those of findings (`Finding.price`), of
    one step and not of a profile's span.
    `looked_at` steps were recorded. `calibrated` is the path of the real profile that the times are from,
    `covered` the share of the device's time that it gave; else they are estimates. `assumptions` are
    sentences. `throughput` is what such a step does, `communication` how long its collectives take, one after
    the other (-1: it has none, or they were not recorded). `limiter` is what takes most of a step (``host``:
    the CPU, launching; ``device``: the GPU; ``input``; ``communication``) in most of the drawn machines, and
    so is `prices.limiter`; `sure` is the share of machines in which it does (below `MIN_CLEAR_SHARE` it
    cannot be told which it is), and `limiters` the share of each that does in any, the largest first. `speed`
    is the host's, where it was measured or said. `uncalibrated` is what a step would be without the profile,
    whose own steps take `profiled` (-1: there is none, or it marks none). `reasons` say why the numbers are
    bounds; `refused` why there are none.

    A step has `launches` kernels, and would have `eager` if nothing of it were compiled (0: nothing is);
    `compiling` is what it would be if it were. `optimizers` are those that stepped.

    `step` has its batches in time; `waiting` is how long it then waits for them (longest where the step is
    shortest), and `overlapped` says that they are made while the step runs, by workers: then a shorter step
    waits longer. `whole` is the step with its wait.

    A `Range` is what four in five of the machines that are drawn lie in (docs/price.md).
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
    throughput: Throughput | None = None
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

    @property
    def whole(self) -> Range:
        """The step including its wait for batches, as the run will have it."""
        return with_waiting(self.step, self.waiting)

    @property
    def clear(self) -> bool:
        """Whether the limiter is the same in clearly more than half of the drawn machines."""
        return self.sure >= MIN_CLEAR_SHARE
