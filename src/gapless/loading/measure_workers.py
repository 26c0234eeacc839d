"""What a worker adds to making a batch, and to receiving it: one is run for real."""

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
from gapless.loading.batches import alike
from gapless.loading.clock import Clock, processor_time
from gapless.loading.forked import Tell
from gapless.loading.measure_items import pin_and_copy
from gapless.model.loading import Fetch, Setting, Transfer

_MOST, _AHEAD = 48, 16
"""Batches after which no more are received, and those asked of the worker in advance."""
_FLIGHT, _DESCRIPTORS = 256 << 20, 256
"""Bytes, and tensors, that may be on their way: each of these is an open file of the worker's."""
_LATE = 0.3
"""Part of the time of a batch after which it is received late."""
_PARTS, _STEADY = 4, 2.0
"""Parts of what is seen of a worker's memory, and by how much its growth from one to the next may differ."""
_KEPT = 0.25
"""Part of a batch by which memory grows with each if something is kept: what is less is the allocator's."""
_FEW = 4
_AT_LEAST = 4.0
"""Seconds in which a few batches may come, however short the time given is."""


def measure_transfer(loader: DataLoader, fetch: Fetch, seconds: float, tell: Tell, *, skip: int) -> Transfer:
    """What one worker adds to making a batch, and the training process to receiving it.

    `fetch` says what making a batch costs. At first the worker has work all the time: each batch is received
    while it makes the next one, as in a loop that waits for its input. Then it is idle before each, as where
    the loop is what is waited for.
    """
    ahead = _ahead(fetch)
    setting = Setting(workers=1, prefetch=ahead)
    clock, sums, batch = Clock(), _Sums(), None
    late = min(_LATE * (fetch.cpu + fetch.wait) / 1e9, seconds / 8)
    begin, delayed = clock.wall(), clock.delayed()
    with warned_off(), running(alike(loader, setting, skip=skip, most=_MOST + ahead)) as iterator:
        started = clock.wall() - begin - (clock.delayed() - delayed)
        deadline = begin + int(seconds * 1e9)
        latest = max(deadline, begin + int(_AT_LEAST * 1e9))  # to start a worker takes what it takes
        while sums.batches < _MOST:
            until = deadline if sums.batches >= _FEW else latest
            if not _there(iterator, until, tell):
                break
            # Some are received while the worker is in the midst of the next one, some when it is idle.
            if sums.worked >= ahead:
                _until_idle(iterator, until)
            elif sums.batches % 2:
                time.sleep(late)
            before = clock.wall(), clock.thread(), clock.delayed()
            idle = _idle(iterator)
            batch = next(iterator, None)
            if batch is None:
                break
            sums.received(clock, before, iterator, begin, idle)
            if tell(min(1.0, (clock.wall() - begin) / 1e9 / seconds)) or clock.wall() > until:
                break
    pin, copy = pin_and_copy(batch) if batch is not None and not _broken() else (-1.0, -1.0)
    return msgspec.structs.replace(sums.transfer(fetch, started), pin=pin, copy=copy)


def _ahead(fetch: Fetch) -> int:
    """Batches that the one worker is asked for in advance."""
    fits = min(_FLIGHT // max(fetch.batch_bytes, 1), _DESCRIPTORS // max(fetch.tensors, 1))
    return int(max(2, min(_AHEAD, fits)))


def _idle(iterator: Any) -> bool:
    """Whether the worker has made all that it was asked for."""
    return _waiting(iterator) >= int(getattr(iterator, "_tasks_outstanding", 1 << 30))


def _until_idle(iterator: Any, deadline: int) -> None:
    while not _idle(iterator) and time.perf_counter_ns() < deadline:
        time.sleep(0.001)


def _broken() -> bool:
    """Whether CUDA cannot be used in this process, a fork of one that has."""
    return bool(torch_internals.in_bad_fork())


class _Sums:
    def __init__(self) -> None:
        self.batches = 0
        self.first = self.booted = 0
        self.walls: list[int] = []
        self.cpus: list[int] = []
        self.at_work: list[int] = []
        self.idle: list[int] = []
        self.worker: list[tuple[int, int]] = []
        self.memory: list[Memory] = []

    @property
    def worked(self) -> int:
        """Batches received from a worker that was not idle."""
        return self.batches - len(self.idle)

    def received(
        self, clock: Clock, before: tuple[int, int, int], iterator: Any, begin: int, idle: bool
    ) -> None:
        """One batch has come, from a worker that was `idle`, or was making others."""
        worker = iterator._workers[0].pid
        computing = clock.thread() - before[1]
        wall = max(clock.wall() - before[0] - (clock.delayed() - before[2]), computing)
        self.walls.append(wall)
        self.cpus.append(computing)
        if idle:
            self.idle.append(wall)
        elif not _nearly_idle(iterator):
            self.at_work.append(wall)
        self.batches += 1
        self.worker.append((self.batches + _waiting(iterator), processor_time(worker)))
        self.memory.append(memory_of(worker))
        if self.batches == 1:
            self.first = clock.wall() - begin
            self.booted = self.first - wall - waiting_for_core(worker)

    def transfer(self, fetch: Fetch, started: int) -> Transfer:
        if not self.batches:
            return Transfer(start=float(started))
        computing = _middle(self.cpus[1:] or self.cpus)
        receive = max(computing, _middle(self.idle)) if self.idle else computing
        copied = self._growth([one.own - one.anonymous for one in self.memory])
        kept = self._growth([one.own for one in self.memory]) - copied
        return Transfer(
            batches=self.batches,
            send=max(0.0, self._send(fetch) - (receive - computing)),
            receive=receive,
            latency=max(0.0, self._received() - receive),
            start=float(started),
            boot=max(0.0, self.booted - started - fetch.cpu - fetch.wait),
            first=float(self.first),
            private=self.memory[0].own,
            growth=copied + (kept if kept > _KEPT * fetch.batch_bytes else 0.0),
            copied=copied,
            shared=max(self.memory[0].anonymous - self.memory[0].own, -1),
        )

    def _received(self) -> float:
        """Nanoseconds from the batch's being there to its being received, from a worker that has work.

        One that runs out of work answers at once; if it always did, what was seen is the least.
        """
        if len(self.at_work) >= _FEW:
            return _mean(self.at_work)
        return float(max(self.walls[1:] or self.walls))

    def _send(self, fetch: Fetch) -> float:
        """The worker's processor time per batch, less what making it takes."""
        (made, begin), (last, end) = self.worker[0], self.worker[-1]
        if last - made < 2 or begin < 0:
            return 0.0
        return max(0.0, (end - begin) / (last - made) - fetch.cpu)

    def _growth(self, values: list[int]) -> float:
        """Bytes for each batch made by which `values` grow in the end, and as much from part to part.

        A worker's memory grows at first, until its allocator has what it needs: that is no growth.
        """
        made = [number for number, _ in self.worker]
        part = len(values) // 2 // _PARTS
        if part < 2 or self.memory[0].own < 0:
            return 0.0
        begin = len(values) - _PARTS * part
        starts = [begin + number * part for number in range(_PARTS)]
        points = [(_middle(made[at : at + part]), _middle(values[at : at + part])) for at in starts]
        slopes = [
            (later - before) / max(then - now, 1.0) for (now, before), (then, later) in pairwise(points)
        ]
        return max(0.0, min(slopes)) if max(slopes) < _STEADY * min(slopes) else 0.0


def _waiting(iterator: Any) -> int:
    """Batches that the worker has made and nobody has received; 0 where the system does not tell (macOS)."""
    try:
        return int(iterator._worker_result_queue.qsize())
    except (NotImplementedError, AttributeError):
        return 0


def _nearly_idle(iterator: Any) -> bool:
    """Whether the worker had nothing more to do until it was asked for one batch just now."""
    return _waiting(iterator) + 1 >= int(getattr(iterator, "_tasks_outstanding", 1 << 30))


def waiting_for_core(pid: int) -> int:
    """Nanoseconds in which a process could have run and had no core; 0 where the system does not tell."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _mean(values: list[int]) -> float:
    """The mean without the longest tenth, which something else has held up."""
    kept = sorted(values)[: max(1, len(values) - len(values) // 10)]
    return sum(kept) / len(kept)


def _middle(values: list[int]) -> float:
    return float(sorted(values)[len(values) // 2])


def _there(iterator: Any, deadline: int, tell: Tell) -> bool:
    """Wait until a batch can be received, so that what receiving takes can be told from waiting for it."""
    reader = getattr(iterator._worker_result_queue, "_reader", None)
    while reader is not None and not reader.poll(0.2):
        if not all(worker.is_alive() for worker in iterator._workers):
            return True  # let the iterator say it
        if tell(0.0) or time.perf_counter_ns() > deadline:
            return False
    return True


@contextmanager
def warned_off() -> Iterator[None]:
    """Without torch's warning of more workers than cores: that is what is being tried."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


@contextmanager
def running(loader: Any) -> Iterator[Any]:
    """An iterator over `loader`, whose workers end with the block, whatever happens in it."""
    iterator = iter(loader)
    try:
        yield iterator
    finally:
        stop(iterator)


def stop(iterator: Any) -> None:
    """End the workers of a DataLoader's iterator."""
    with suppress(Exception):
        end = getattr(iterator, "_shutdown_workers", None)
        if end is not None:
            end()


class Memory(NamedTuple):
    """Bytes of a process: those that it shares with no other, batches on their way left out; and those that
    come from no file, shared after a fork or not. -1 where the system does not tell."""

    own: int = -1
    anonymous: int = -1


def memory_of(pid: int) -> Memory:
    """What the system tells of a process. A page that is copied on being written to is then its own; the
    number of its pages remains."""
    try:
        rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        told = {name: 1024 * int(value) for name, value, *_ in (row.split() for row in rows)}
        own = told["Private_Clean:"] + told["Private_Dirty:"] - told.get("Pss_Shmem:", 0)
        return Memory(own, told["Anonymous:"])
    except (OSError, ValueError, KeyError):
        return Memory()
