"""Measure what a worker adds to making and to receiving a batch, by running one."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from torch.utils.data import DataLoader

from gapless import torch_internals
from gapless.loading.batches import with_setting
from gapless.loading.clock import Clock, processor_time
from gapless.loading.forked import Tell
from gapless.loading.measure_items import pin_and_copy
from gapless.model.loading import Fetch, Setting, Transfer

_MAX_BATCHES, _MAX_AHEAD = 48, 16
"""Batches received at most, and requested from the worker in advance at most."""
_MAX_BYTES_IN_FLIGHT, _MAX_TENSORS_IN_FLIGHT = 256 << 20, 256
"""Bounds of what is on its way: each tensor is an open file of the worker."""
_LATE_SHARE = 0.3
"""Share of the time of a batch after which it is received late."""
_GROWTH_PARTS, _MAX_GROWTH_RATIO = 4, 2.0
"""Parts into which the samples of a worker's memory are divided, and how much growth may differ between
them.
"""
_MIN_KEPT_SHARE = 0.25
"""Growth per batch below this share of it is the allocator's; above, something is kept."""
_MIN_BATCHES = 4
"""Batches needed for a result."""
_MIN_SECONDS = 4.0
"""Time for a few batches, even if the time allowed is shorter."""


def measure_transfer(loader: DataLoader, fetch: Fetch, seconds: float, tell: Tell, *, skip: int) -> Transfer:
    """Measure what one worker adds to making a batch, and the training process to receiving it.

    `fetch` is the cost of making a batch. At first the worker is always busy: each batch is received while it
    makes the next, as in a loop that waits for input. Then it is idle before each batch, as in a loop that is
    the bottleneck.
    """
    ahead = _batches_ahead(fetch)
    setting = Setting(workers=1, prefetch=ahead)
    clock, sums, batch = Clock(), _WorkerSamples(), None
    late = min(_LATE_SHARE * (fetch.cpu + fetch.wait) / 1e9, seconds / 8)
    begin, delayed = clock.wall(), clock.delayed()
    with (
        without_worker_warning(),
        iterate(with_setting(loader, setting, skip=skip, most=_MAX_BATCHES + ahead)) as iterator,
    ):
        started = clock.wall() - begin - (clock.delayed() - delayed)
        deadline = begin + int(seconds * 1e9)
        latest = max(deadline, begin + int(_MIN_SECONDS * 1e9))  # starting a worker may take longer
        while sums.batches < _MAX_BATCHES:
            until = deadline if sums.batches >= _MIN_BATCHES else latest
            if not _wait_for_batch(iterator, until, tell):
                break
            # some are received while the worker makes the next one, some when it is idle
            if sums.received_busy >= ahead:
                _wait_until_idle(iterator, until)
            elif sums.batches % 2:
                time.sleep(late)
            before = clock.wall(), clock.thread(), clock.delayed()
            idle = _is_idle(iterator)
            batch = next(iterator, None)
            if batch is None:
                break
            sums.add(clock, before, iterator, begin, idle)
            if tell(min(1.0, (clock.wall() - begin) / 1e9 / seconds)) or clock.wall() > until:
                break
    pin, copy = pin_and_copy(batch) if batch is not None and not _is_cuda_unusable() else (-1.0, -1.0)
    return msgspec.structs.replace(sums.transfer(fetch, started), pin=pin, copy=copy)


def _batches_ahead(fetch: Fetch) -> int:
    """Return the batches requested from the one worker in advance."""
    fits = min(
        _MAX_BYTES_IN_FLIGHT // max(fetch.batch_bytes, 1), _MAX_TENSORS_IN_FLIGHT // max(fetch.tensors, 1)
    )
    return int(max(2, min(_MAX_AHEAD, fits)))


def _is_idle(iterator: Any) -> bool:
    """Whether the worker has finished all requests."""
    return _count_waiting(iterator) >= int(getattr(iterator, "_tasks_outstanding", 1 << 30))


def _wait_until_idle(iterator: Any, deadline: int) -> None:
    while not _is_idle(iterator) and time.perf_counter_ns() < deadline:
        time.sleep(0.001)


def _is_cuda_unusable() -> bool:
    """Whether this process is a fork of one that uses CUDA, and so cannot use it."""
    return bool(torch_internals.in_bad_fork())


class _WorkerSamples:
    def __init__(self) -> None:
        self.batches = 0
        self.first = self.booted = 0
        self.walls: list[int] = []
        self.cpus: list[int] = []
        self.at_work: list[int] = []
        self.idle: list[int] = []
        self.worker: list[tuple[int, int]] = []
        self.memory: list[ProcessMemory] = []

    @property
    def received_busy(self) -> int:
        """The batches received from a worker that was not idle."""
        return self.batches - len(self.idle)

    def add(self, clock: Clock, before: tuple[int, int, int], iterator: Any, begin: int, idle: bool) -> None:
        """Add a received batch; `idle`: the worker was not making others."""
        worker = iterator._workers[0].pid
        computing = clock.thread() - before[1]
        wall = max(clock.wall() - before[0] - (clock.delayed() - before[2]), computing)
        self.walls.append(wall)
        self.cpus.append(computing)
        if idle:
            self.idle.append(wall)
        elif not _was_idle_before_request(iterator):
            self.at_work.append(wall)
        self.batches += 1
        self.worker.append((self.batches + _count_waiting(iterator), processor_time(worker)))
        self.memory.append(memory_of(worker))
        if self.batches == 1:
            self.first = clock.wall() - begin
            self.booted = self.first - wall - waiting_for_core(worker)

    def transfer(self, fetch: Fetch, started: int) -> Transfer:
        if not self.batches:
            return Transfer(start=float(started))
        computing = _median(self.cpus[1:] or self.cpus)
        receive = max(computing, _median(self.idle)) if self.idle else computing
        copied = self._steady_growth([sample.own - sample.anonymous for sample in self.memory])
        kept = self._steady_growth([sample.own for sample in self.memory]) - copied
        return Transfer(
            batches=self.batches,
            send=max(0.0, self._send_time(fetch) - (receive - computing)),
            receive=receive,
            latency=max(0.0, self._time_from_ready() - receive),
            start=float(started),
            boot=max(0.0, self.booted - started - fetch.cpu - fetch.wait),
            first=float(self.first),
            private=self.memory[0].own,
            growth=copied + (kept if kept > _MIN_KEPT_SHARE * fetch.batch_bytes else 0.0),
            copied=copied,
            shared=max(self.memory[0].anonymous - self.memory[0].own, -1),
        )

    def _time_from_ready(self) -> float:
        """Return the nanoseconds from a batch being ready to its being received, from a busy worker.

        A worker that runs out of work answers at once; if it always did, the longest wait is a lower bound.
        """
        if len(self.at_work) >= _MIN_BATCHES:
            return _trimmed_mean(self.at_work)
        return float(max(self.walls[1:] or self.walls))

    def _send_time(self, fetch: Fetch) -> float:
        """Return the worker's processor time per batch beyond making it."""
        (first_count, begin), (last, end) = self.worker[0], self.worker[-1]
        if last - first_count < 2 or begin < 0:
            return 0.0
        return max(0.0, (end - begin) / (last - first_count) - fetch.cpu)

    def _steady_growth(self, values: list[int]) -> float:
        """Return the bytes per batch by which `values` steadily grow in their second half; 0 if unsteady.

        A worker's memory grows at first, until its allocator has what it needs.
        """
        batch_counts = [number for number, _ in self.worker]
        part = len(values) // 2 // _GROWTH_PARTS
        if part < 2 or self.memory[0].own < 0:
            return 0.0
        begin = len(values) - _GROWTH_PARTS * part
        starts = [begin + number * part for number in range(_GROWTH_PARTS)]
        points = [(_median(batch_counts[at : at + part]), _median(values[at : at + part])) for at in starts]
        slopes = [
            (later - before) / max(then - now, 1.0) for (now, before), (then, later) in pairwise(points)
        ]
        return max(0.0, min(slopes)) if max(slopes) < _MAX_GROWTH_RATIO * min(slopes) else 0.0


def _count_waiting(iterator: Any) -> int:
    """Count batches that the worker has made and nobody received; 0 if the system does not say (macOS)."""
    try:
        return int(iterator._worker_result_queue.qsize())
    except (NotImplementedError, AttributeError):
        return 0


def _was_idle_before_request(iterator: Any) -> bool:
    """Whether the worker was idle until the request for one batch just now."""
    return _count_waiting(iterator) + 1 >= int(getattr(iterator, "_tasks_outstanding", 1 << 30))


def waiting_for_core(pid: int) -> int:
    """Return nanoseconds in which a process was runnable without a core; 0 if the system does not say."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _trimmed_mean(values: list[int]) -> float:
    """Return the mean without the longest tenth, which something else has delayed."""
    kept = sorted(values)[: max(1, len(values) - len(values) // 10)]
    return sum(kept) / len(kept)


def _median(values: list[int]) -> float:
    return float(sorted(values)[len(values) // 2])


def _wait_for_batch(iterator: Any, deadline: int, tell: Tell) -> bool:
    """Wait until a batch is ready, to separate receiving it from waiting; False if that takes too long."""
    reader = getattr(iterator._worker_result_queue, "_reader", None)
    while reader is not None and not reader.poll(0.2):
        if not all(worker.is_alive() for worker in iterator._workers):
            return True  # the iterator reports it
        if tell(0.0) or time.perf_counter_ns() > deadline:
            return False
    return True


@contextmanager
def without_worker_warning() -> Iterator[None]:
    """Suppress torch's warning about more workers than cores: trying that is the purpose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


@contextmanager
def iterate(loader: Any) -> Iterator[Any]:
    """Yield an iterator over `loader`, whose workers end with the block."""
    iterator = iter(loader)
    try:
        yield iterator
    finally:
        stop_workers(iterator)


def stop_workers(iterator: Any) -> None:
    """End the workers of a DataLoader's iterator."""
    with suppress(Exception):
        end = getattr(iterator, "_shutdown_workers", None)
        if end is not None:
            end()


class ProcessMemory(NamedTuple):
    """Bytes of a process: its own, without batches on their way; and those that come from no file, shared
    after a fork or not. -1 if unknown.
    """

    own: int = -1
    anonymous: int = -1


def memory_of(pid: int) -> ProcessMemory:
    """Return the memory of a process. A page copied on write then counts as its own; the number of pages
    stays.
    """
    try:
        rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        sizes = {name: 1024 * int(value) for name, value, *_ in (row.split() for row in rows)}
        own = sizes["Private_Clean:"] + sizes["Private_Dirty:"] - sizes.get("Pss_Shmem:", 0)
        return ProcessMemory(own, sizes["Anonymous:"])
    except (OSError, ValueError, KeyError):
        return ProcessMemory()
