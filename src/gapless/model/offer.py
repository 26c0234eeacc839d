"""`Offer`: a GPU named by the user: whether the run fits, how long a step takes, and what it costs."""

from __future__ import annotations

import msgspec

from gapless.model.estimate import Range, Throughput, with_waiting


class Wanted(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The GPUs to estimate a run for, with the price of an hour of each, by name."""

    gpus: tuple[str, ...] = ()
    prices: dict[str, float] = {}


class Offer(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What was recorded on one emulated GPU, reckoned for another (or the same).

    Memory in bytes: `total` as torch reports it, `has` what of it a process can get, `needs` the least with
    which the replay comes through (-1: not recorded). `fits` is None where that was not recorded; `lasts` is
    after how many more steps memory that grows is full there (-1: it does not grow). `step` in
    nanoseconds, `device` that part in which the GPU has work; `waiting` is how long a step then waits for its
    batches, and `whole` both together. `refused` says why there is no estimate.
    `price` is what an hour of one GPU costs (-1: not said), in whatever money; `cost` of a million `unit`
    (samples or tokens), of an `epoch` and of the whole
    `run` are in the same. `source` is the document that the GPU's figures are from.
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
    throughput: Throughput | None = None
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
