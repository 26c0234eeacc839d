"""`Offer`: a GPU named by the user: whether the run fits, how long a step takes, and what it costs."""

from __future__ import annotations

import msgspec

from gapless.model.estimate import Range, StepThroughput, with_waiting


class Wanted(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The GPUs to estimate a run for, with the price of an hour of each, by name."""

    gpus: tuple[str, ...] = ()
    prices: dict[str, float] = {}


class Offer(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A recording on one emulated GPU, estimated for another (or the same).

    - `total`: bytes of memory as torch reports it; `has`: what a process can get; `needs`: the least with
      which the replay succeeds (-1: not recorded).
    - `fits`: None if memory was not recorded; `lasts`: further steps until growing memory is full (-1: it
      does not grow).
    - `step`: nanoseconds; `device`: the part in which the GPU has work; `waiting`: its wait for batches;
      `whole`: both.
    - `refused`: why there is no estimate.
    - `price`: of an hour of one GPU (-1: not given), in any currency; `cost`: of a million `unit` (samples or
      tokens); `epoch`, `run`: of an epoch and of the whole run.
    - `source`: the document with the GPU's figures.
    """

    gpu: str
    total: int = 0
    has: int = 0
    needs: int = -1
    fits: bool | None = None
    lasts: int = -1
    retries: int = 0
    step: Range = Range()
    device: int = 0
    throughput: StepThroughput | None = None
    refused: str = ""
    price: float = -1.0
    unit: str = ""
    cost: float = -1.0
    epoch: float = -1.0
    source: str = ""
    emulated: bool = False
    waiting: Range = Range()
    run: float = -1.0

    @property
    def whole(self) -> Range:
        """The step including its wait for batches."""
        return with_waiting(self.step, self.waiting)

    @property
    def short(self) -> int:
        """Bytes that are missing; negative if some are left."""
        return self.needs - self.has

    @property
    def each(self) -> float:
        """Samples or tokens per step, according to `unit`; 0 if unknown."""
        done = self.throughput
        counted = (done.tokens if self.unit == "tokens" else done.samples) if done is not None else None
        return counted.number if counted is not None else 0.0
