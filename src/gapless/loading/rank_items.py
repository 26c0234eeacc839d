"""What one rank's loader yields: indices of a map-style dataset, or digests of a stream's items."""

from __future__ import annotations

import numpy

from gapless.model.source import SourceLine

import msgspec  # isort: skip


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """One pass. `items` are indices or digests (int64), `sizes` those of the batches and `workers` their
    makers. `complete` means that the pass was recorded to its end.
    """

    items: bytes = b""
    sizes: bytes = b""
    workers: bytes = b""
    complete: bool = True

    def values(self) -> numpy.ndarray:
        """Return the indices or digests of the items, in the order they were yielded."""
        return numpy.frombuffer(self.items, numpy.int64)

    def batches(self) -> list[int]:
        """Return the number of items of each batch."""
        return [int(size) for size in numpy.frombuffer(self.sizes, numpy.int64)]

    def makers(self) -> list[int]:
        """Return the worker of each batch."""
        return [int(worker) for worker in numpy.frombuffer(self.workers, numpy.int64)]

    def by_worker(self) -> dict[int, numpy.ndarray]:
        """Return the items of each worker, in order."""
        owners = numpy.repeat(self.makers(), self.batches())
        values = self.values()
        return {int(worker): values[owners == worker] for worker in sorted(set(self.makers()))}


class GeneratorUse(msgspec.Struct, frozen=True, kw_only=True):
    """A random number generator in one worker and epoch: its state before the first item, and whether making
    items has used it.
    """

    name: str
    epoch: int
    worker: int
    start: str
    used: bool


class RankItems(msgspec.Struct, frozen=True, kw_only=True):
    """The recording of one rank's loader.

    `length` is that of a map-style dataset, -1 for a stream. `sampler` is the class that orders it, `plain`
    whether it is one of torch's that yield everything once, `shuffles` whether it draws random numbers,
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
    draws: tuple[GeneratorUse, ...] = ()
    line: SourceLine | None = None
    sampler_line: SourceLine | None = None
    fingerprints: bool = True
    """Whether every item can be identified by its content."""

    @property
    def iterable(self) -> bool:
        """Whether the dataset is a stream."""
        return self.length < 0

    @property
    def complete(self) -> bool:
        """Whether each epoch was recorded to its end."""
        return bool(self.epochs) and all(epoch.complete for epoch in self.epochs)
