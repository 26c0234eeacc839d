"""What one rank's loader yields: positions of a map-style dataset, digests of a stream's items."""

from __future__ import annotations

import numpy

from gapless.model.source import SourceLine

import msgspec  # isort: skip


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """One pass. `items` are positions or digests (int64), `sizes` those of the batches and `workers` who made
    them. `complete` says that the pass was seen to its end."""

    items: bytes = b""
    sizes: bytes = b""
    workers: bytes = b""
    complete: bool = True

    def values(self) -> numpy.ndarray:
        """The items, in the order in which they come."""
        return numpy.frombuffer(self.items, numpy.int64)

    def batches(self) -> list[int]:
        """Items of each batch."""
        return [int(size) for size in numpy.frombuffer(self.sizes, numpy.int64)]

    def makers(self) -> list[int]:
        """The worker of each batch."""
        return [int(worker) for worker in numpy.frombuffer(self.workers, numpy.int64)]

    def by_worker(self) -> dict[int, numpy.ndarray]:
        """The items of each worker, in order."""
        owners = numpy.repeat(self.makers(), self.batches())
        values = self.values()
        return {int(worker): values[owners == worker] for worker in sorted(set(self.makers()))}


class Draws(msgspec.Struct, frozen=True, kw_only=True):
    """A source of random numbers in one worker and epoch: its state before the first item, and whether making
    items has used it."""

    name: str
    epoch: int
    worker: int
    start: str
    used: bool


class RankItems(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's loader.

    `length` is that of a map-style dataset, -1 for a stream. `sampler` is the class that orders it, `plain`
    whether it is one of torch's that go through everything once, `shuffles` whether it draws random numbers,
    `takes_epochs` whether it has ``set_epoch``.
    """

    rank: int
    workers: int
    batch_size: int
    drop_last: bool
    length: int
    dataset: str
    persistent: bool = False
    sampler: str = ""
    plain: bool = False
    shuffles: bool = False
    takes_epochs: bool = False
    epochs: tuple[Epoch, ...] = ()
    draws: tuple[Draws, ...] = ()
    line: SourceLine | None = None
    sampler_line: SourceLine | None = None
    fingerprints: bool = True
    """Whether every item has content to tell it by."""

    @property
    def iterable(self) -> bool:
        """Whether it is a stream."""
        return self.length < 0

    @property
    def complete(self) -> bool:
        """Whether each epoch was seen to its end."""
        return bool(self.epochs) and all(epoch.complete for epoch in self.epochs)
