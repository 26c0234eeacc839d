"""What making batches takes inside a loop that runs, whoever makes them: the loop itself or its workers."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch.utils.data import get_worker_info

from gapless.loading.clock import Clock, Storage, page_faults
from gapless.torch_internals import IterableFetcher, MapFetcher

_FETCHERS: tuple[type[Any], ...] = (MapFetcher, IterableFetcher)
_WIDTH = 8


class Made(NamedTuple):
    """Batches, and of all together: nanoseconds by three clocks, bytes from storage, pages touched."""

    batches: int = 0
    wall: int = 0
    cpu: int = 0
    delay: int = 0
    read: int = 0
    faults: int = 0

    def since(self, before: Made) -> Made:
        """What was made after `before`."""
        return Made(*(now - then for now, then in zip(self, before, strict=True)))

    @property
    def wait(self) -> int:
        """Nanoseconds that are neither computing nor waiting for a core."""
        return max(self.wall - self.cpu - self.delay, 0)


class FetchCounters:
    """Memory that this process and the workers it forks share; each adds to a row of its own.

    Workers that are spawned have no part in it: then nothing is counted.
    """

    def __init__(self, workers: int) -> None:
        self._rows = max(workers, 1)
        size = self._rows * len(Made._fields) * _WIDTH
        self._numbers = memoryview(mmap.mmap(-1, size)).cast("q")

    @property
    def made(self) -> Made:
        """By all of them until now."""
        width = len(Made._fields)
        return Made(*(sum(self._numbers[at::width]) for at in range(width)))

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what torch's fetchers do, here and in processes that are forked meanwhile."""
        before = [(kind, kind.fetch) for kind in _FETCHERS]
        for kind, theirs in before:
            setattr(kind, "fetch", self._counted(theirs))  # noqa: B010
        try:
            yield
        finally:
            for kind, theirs in before:
                setattr(kind, "fetch", theirs)  # noqa: B010

    def _counted(self, theirs: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        counters: list[_Counters] = []

        def fetch(fetcher: Any, asked: Any) -> Any:
            if not counters:  # in the worker: a clock of the parent's would tell of the parent's thread
                counters.append(_Counters())
            before = counters[0].now()
            try:
                return theirs(fetcher, asked)
            finally:
                self._add(counters[0].now().since(before))

        return fetch

    def _add(self, more: Made) -> None:
        worker = get_worker_info()
        begin = (worker.id if worker is not None else 0) * len(Made._fields)
        for at, value in enumerate(more, begin):
            self._numbers[at] += value


class _Counters:
    """A process's own; each reading counts one batch more."""

    def __init__(self) -> None:
        self._clock, self._storage, self._readings = Clock(), Storage(), 0

    def now(self) -> Made:
        clock = self._clock
        self._readings += 1
        return Made(
            self._readings, clock.wall(), clock.cpu(), clock.delayed(), self._storage.read(), page_faults()
        )
