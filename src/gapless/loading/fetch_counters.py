"""Count what making batches costs inside a running loop, in the loop's process or its workers."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch.utils.data import get_worker_info

from gapless.loading.clock import Clock, StorageReads, page_faults
from gapless.torch_internals import IterableFetcher, MapFetcher

_FETCHERS: tuple[type[Any], ...] = (MapFetcher, IterableFetcher)
_BYTES_PER_NUMBER = 8
"""Bytes of a signed 64-bit integer, format ``q``."""


class BatchCosts(NamedTuple):
    """Totals over batches: nanoseconds by three clocks, bytes from storage, pages touched."""

    batches: int = 0
    wall: int = 0
    cpu: int = 0
    delay: int = 0
    read: int = 0
    faults: int = 0

    def since(self, before: BatchCosts) -> BatchCosts:
        """Return the difference to an earlier total."""
        return BatchCosts(*(now - then for now, then in zip(self, before, strict=True)))

    @property
    def wait(self) -> int:
        """Nanoseconds that are neither computing nor waiting for a core."""
        return max(self.wall - self.cpu - self.delay, 0)


class FetchCounters:
    """Totals in memory shared with forked workers; each process adds to its own row.

    Spawned workers cannot share it: then nothing is counted.
    """

    def __init__(self, workers: int) -> None:
        self._rows = max(workers, 1)
        size = self._rows * len(BatchCosts._fields) * _BYTES_PER_NUMBER
        self._numbers = memoryview(mmap.mmap(-1, size)).cast("q")

    @property
    def made(self) -> BatchCosts:
        """The sum over all processes up to now."""
        width = len(BatchCosts._fields)
        return BatchCosts(*(sum(self._numbers[at::width]) for at in range(width)))

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the work of torch's fetchers, here and in processes forked meanwhile."""
        before = [(kind, kind.fetch) for kind in _FETCHERS]
        for kind, original in before:
            setattr(kind, "fetch", self._counting_fetch(original))  # noqa: B010
        try:
            yield
        finally:
            for kind, original in before:
                setattr(kind, "fetch", original)  # noqa: B010

    def _counting_fetch(self, original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        counters: list[_Counters] = []

        def fetch(fetcher: Any, request: Any) -> Any:
            if not counters:  # created in the worker: a clock of the parent would measure the parent's thread
                counters.append(_Counters())
            before = counters[0].now()
            try:
                return original(fetcher, request)
            finally:
                self._add(counters[0].now().since(before))

        return fetch

    def _add(self, more: BatchCosts) -> None:
        worker = get_worker_info()
        begin = (worker.id if worker is not None else 0) * len(BatchCosts._fields)
        for at, value in enumerate(more, begin):
            self._numbers[at] += value


class _Counters:
    """Reads this process's counters; each reading adds one batch."""

    def __init__(self) -> None:
        self._clock, self._storage, self._readings = Clock(), StorageReads(), 0

    def now(self) -> BatchCosts:
        clock = self._clock
        self._readings += 1
        return BatchCosts(
            self._readings, clock.wall(), clock.cpu(), clock.delayed(), self._storage.read(), page_faults()
        )
