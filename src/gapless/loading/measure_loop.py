"""A loop over a loader under some setting, run for real."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from typing import Any

import msgspec
from torch.utils.data import DataLoader

from gapless.loading.batches import alike, is_iterable
from gapless.loading.clock import processor_time
from gapless.loading.fetch_counters import FetchCounters, Made
from gapless.loading.forked import Tell
from gapless.loading.machine import Others, of_group
from gapless.loading.measure_workers import running, waiting_for_core, warned_off
from gapless.model.loading import Seen, Setting

AT_LEAST = 4.0
"""Seconds in which a few steps may come, however short the time given is."""
_PASSES = 50
"""Times that a short loader is gone through at most."""
_ENOUGH = 9
"""Steps, after those that warm up, that a run should have."""
_EVERY = 100_000_000
"""Nanoseconds between two looks at what the loop's processes did."""


def use(
    loader: DataLoader,
    setting: Setting,
    step: float,
    busy: float,
    seconds: float,
    tell: Tell,
    *,
    skip: int = 0,
) -> Seen:
    """Run a loop under `setting` whose steps take `step` nanoseconds, of which the host computes `busy`.

    A loader that comes to its end before the time is over is gone through again, as in training; the first
    batches of each pass do not count.
    """
    setting = msgspec.structs.replace(setting, pin=False)  # without a GPU nothing is pinned
    most = None if is_iterable(loader) else 1 << 30
    return loop(
        lambda: alike(loader, setting, skip=skip, most=most), setting, step, busy, seconds, tell, queue=True
    )


def loop(
    make: Callable[[], Any],
    setting: Setting,
    step: float,
    busy: float,
    seconds: float,
    tell: Tell,
    *,
    queue: bool = False,
) -> Seen:
    """Run a loop over what `make` gives, as :func:`use` does; with a `queue` it can tell what is ready."""
    counters, begin, passes = FetchCounters(setting.workers), time.perf_counter_ns(), list[_Pass]()
    beside = Others(of_group)
    with warned_off(), counters.counting():
        while True:
            one = _Pass(make(), setting, counters)
            passes.append(one)
            ended = one.run(step, busy, seconds, begin, tell)
            passed = (time.perf_counter_ns() - begin) / 1e9
            if not ended or not one.marks or passed >= seconds or len(passes) >= _PASSES:
                break
    found = _seen(setting, passes)
    return msgspec.structs.replace(
        found,
        ready=found.ready if queue else -1.0,
        others=beside.cores(),
        stolen=beside.stolen(),
        throttled=beside.throttled(),
    )


class _Pass:
    """One time through a loader, in a loop."""

    def __init__(self, loader: Any, setting: Setting, counters: FetchCounters) -> None:
        self.loader, self.counters = loader, counters
        self.warm = setting.workers * max(setting.prefetch, 1) + 2
        self.turn = max(setting.workers, 1)
        self.first = 0
        self.marks: list[int] = []
        self.waits: list[int] = []
        self.counts: list[int] = []
        self.ran = (0, 0)
        self.made = Made()

    def run(self, step: float, busy: float, seconds: float, began: int, tell: Tell) -> bool:
        """Whether it came to its end; False where the time was over."""
        begin = time.perf_counter_ns()
        with running(self.loader) as iterator:
            asked = time.perf_counter_ns()
            pids = _processes()
            before, made = _ran(pids), self.counters.made
            looked = begin
            while True:
                ready = queued(iterator)
                if next(iterator, iterator) is iterator:
                    return True  # its workers have ended: what they were seen to do last is what there is
                got = time.perf_counter_ns()
                self.first = self.first or got - begin
                _pretend(step, busy)
                self.waits.append(got - asked)
                self.counts.append(ready)
                asked = time.perf_counter_ns()
                self.marks.append(asked)
                if len(self.marks) == self.warm:
                    pids = _processes()  # workers of a loader inside of it start with the first batch
                    before, made = _ran(pids), self.counters.made
                if asked - looked > _EVERY and len(self.marks) > self.warm:
                    looked = asked
                    self._look(pids, before, made)
                passed = (asked - began) / 1e9
                if tell(min(1.0, passed / seconds)):
                    break
                enough = passed >= seconds and len(self.marks) > self.warm + _ENOUGH
                if enough or passed >= max(2 * seconds, AT_LEAST):
                    break
            self._look(pids, before, made)
        return False

    def _look(self, pids: list[int], before: tuple[int, int], made: Made) -> None:
        """What has happened until now, since `before` and `made`."""
        cpu, delay = _ran(pids)
        self.ran = cpu - before[0], delay - before[1]
        self.made = self.counters.made.since(made)

    @property
    def steady(self) -> int:
        """Steps that count: whole turns of the workers, after those that warm up."""
        warm = self.warm if len(self.marks) > 2 * self.warm else len(self.marks) // 2
        return max((len(self.marks) - warm - 1) // self.turn * self.turn, 0)


def _processes() -> list[int]:
    """This one and its workers."""
    return [os.getpid(), *(worker.pid for worker in multiprocessing.active_children() if worker.pid)]


def _ran(pids: list[int]) -> tuple[int, int]:
    """Processor time of processes, and time in which they waited for a core."""
    return sum(max(processor_time(pid), 0) for pid in pids), sum(waiting_for_core(pid) for pid in pids)


def _seen(setting: Setting, passes: list[_Pass]) -> Seen:
    """What all of them say together."""
    first = float(passes[0].first)
    counted = [one for one in passes if one.steady]
    if not counted:
        return Seen(setting=setting, first=first)
    steady = sum(one.steady for one in counted)
    cpu, delay = (sum(one.ran[at] for one in counted) for at in (0, 1))
    made = Made(*(sum(values) for values in zip(*(one.made for one in counted), strict=True)))
    of = max(made.batches, 1)
    return Seen(
        setting=setting,
        batches=steady,
        step=sum(one.marks[-1] - one.marks[-one.steady - 1] for one in counted) / steady,
        wait=sum(sum(one.waits[-one.steady :]) for one in counted) / steady,
        first=first,
        ready=sum(sum(one.counts[-one.steady :]) for one in counted) / steady if setting.workers else -1.0,
        had=cpu / (cpu + delay) if cpu + delay > 0 else -1.0,
        made=made.batches,
        made_cpu=made.cpu / of,
        made_wait=made.wait / of,
        made_delay=made.delay / of,
        read=made.read / of,
        faults=made.faults / of,
    )


def queued(iterator: Any) -> int:
    """Batches that are ready: in the queue, and received out of order."""
    queue = getattr(iterator, "_data_queue", None)
    if queue is None:
        return 0
    try:
        received = sum(len(one) == 2 for one in iterator._task_info.values())
        return int(queue.qsize()) + received
    except (NotImplementedError, AttributeError):
        return 0


def _pretend(step: float, busy: float) -> None:
    """A training step: compute for the part `busy` of it, and sleep for the rest."""
    end = time.thread_time_ns() + int(step * busy)
    while time.thread_time_ns() < end:
        pass
    if busy < 1 and step > 0:
        time.sleep(step * (1 - busy) / 1e9)
