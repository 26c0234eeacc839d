"""Run a loop over a loader under some setting."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from typing import Any

import msgspec
from torch.utils.data import DataLoader

from gapless.loading.batches import is_iterable, with_setting
from gapless.loading.clock import processor_time
from gapless.loading.fetch_counters import BatchCosts, FetchCounters
from gapless.loading.forked import Tell
from gapless.loading.machine import OtherLoad, group_seconds
from gapless.loading.measure_workers import iterate, waiting_for_core, without_worker_warning
from gapless.model.loading import Seen, Setting

MIN_SECONDS = 4.0
"""Time for a few steps, even if the time allowed is shorter."""
_MAX_PASSES = 50
"""Passes through a short loader, at most."""
_MIN_STEPS = 9
"""Steps after warm-up that a run should have."""
_SAMPLE_NS = 100_000_000
"""Interval of reading what the loop's processes did."""


def run_setting(
    loader: DataLoader,
    setting: Setting,
    step: float,
    busy: float,
    seconds: float,
    tell: Tell,
    *,
    skip: int = 0,
) -> Seen:
    """Run a loop under `setting` with steps of `step` nanoseconds, of which the host computes the share
    `busy`.

    A loader that ends before the time is over is iterated again, as in training; the first batches of each
    pass do not count.
    """
    setting = msgspec.structs.replace(setting, pin=False)  # without a GPU nothing is pinned
    most = None if is_iterable(loader) else 1 << 30
    return run_loop(
        lambda: with_setting(loader, setting, skip=skip, most=most),
        setting,
        step,
        busy,
        seconds,
        tell,
        queue=True,
    )


def run_loop(
    make: Callable[[], Any],
    setting: Setting,
    step: float,
    busy: float,
    seconds: float,
    tell: Tell,
    *,
    queue: bool = False,
) -> Seen:
    """Run a loop over what `make` returns, as :func:`run_setting` does; with `queue` ready batches are
    counted.
    """
    counters, begin, passes = FetchCounters(setting.workers), time.perf_counter_ns(), list[_LoopPass]()
    other_load = OtherLoad(group_seconds)
    with without_worker_warning(), counters.counting():
        while True:
            current = _LoopPass(make(), setting, counters)
            passes.append(current)
            ended = current.run(step, busy, seconds, begin, tell)
            passed = (time.perf_counter_ns() - begin) / 1e9
            if not ended or not current.marks or passed >= seconds or len(passes) >= _MAX_PASSES:
                break
    run = _summarize_passes(setting, passes)
    return msgspec.structs.replace(
        run,
        ready=run.ready if queue else -1.0,
        others=other_load.cores(),
        stolen=other_load.stolen(),
        throttled=other_load.throttled(),
    )


class _LoopPass:
    """One pass through a loader, in a loop."""

    def __init__(self, loader: Any, setting: Setting, counters: FetchCounters) -> None:
        self.loader, self.counters = loader, counters
        self.warm = setting.workers * max(setting.prefetch, 1) + 2
        self.turn = max(setting.workers, 1)
        self.first = 0
        self.marks: list[int] = []
        self.waits: list[int] = []
        self.counts: list[int] = []
        self.ran = (0, 0)
        self.made = BatchCosts()

    def run(self, step: float, busy: float, seconds: float, began: int, tell: Tell) -> bool:
        """Run the pass; return whether it came to its end (False: out of time)."""
        begin = time.perf_counter_ns()
        with iterate(self.loader) as iterator:
            request_time = time.perf_counter_ns()
            pids = _processes()
            before, costs_before = _core_times(pids), self.counters.made
            looked = begin
            while True:
                ready = count_ready(iterator)
                if next(iterator, iterator) is iterator:
                    return True  # its workers have ended: what was sampled last remains
                got = time.perf_counter_ns()
                self.first = self.first or got - begin
                _pretend(step, busy)
                self.waits.append(got - request_time)
                self.counts.append(ready)
                request_time = time.perf_counter_ns()
                self.marks.append(request_time)
                if len(self.marks) == self.warm:
                    pids = _processes()  # workers of an inner loader start with the first batch
                    before, costs_before = _core_times(pids), self.counters.made
                if request_time - looked > _SAMPLE_NS and len(self.marks) > self.warm:
                    looked = request_time
                    self._look(pids, before, costs_before)
                passed = (request_time - began) / 1e9
                if tell(min(1.0, passed / seconds)):
                    break
                enough = passed >= seconds and len(self.marks) > self.warm + _MIN_STEPS
                if enough or passed >= max(2 * seconds, MIN_SECONDS):
                    break
            self._look(pids, before, costs_before)
        return False

    def _look(self, pids: list[int], before: tuple[int, int], costs_before: BatchCosts) -> None:
        """Sample what the processes did since `before` and `made`."""
        cpu, delay = _core_times(pids)
        self.ran = cpu - before[0], delay - before[1]
        self.made = self.counters.made.since(costs_before)

    @property
    def steady(self) -> int:
        """The number of steps that count: whole turns of the workers, after warm-up."""
        warm = self.warm if len(self.marks) > 2 * self.warm else len(self.marks) // 2
        return max((len(self.marks) - warm - 1) // self.turn * self.turn, 0)


def _processes() -> list[int]:
    """Return this process and its workers."""
    return [os.getpid(), *(worker.pid for worker in multiprocessing.active_children() if worker.pid)]


def _core_times(pids: list[int]) -> tuple[int, int]:
    """Return processor time of processes, and their time waiting for a core."""
    return sum(max(processor_time(pid), 0) for pid in pids), sum(waiting_for_core(pid) for pid in pids)


def _summarize_passes(setting: Setting, passes: list[_LoopPass]) -> Seen:
    """Combine the passes into one result."""
    first = float(passes[0].first)
    counted = [loop_pass for loop_pass in passes if loop_pass.steady]
    if not counted:
        return Seen(setting=setting, first=first)
    steady = sum(loop_pass.steady for loop_pass in counted)
    cpu, delay = (sum(loop_pass.ran[at] for loop_pass in counted) for at in (0, 1))
    costs = BatchCosts(
        *(sum(values) for values in zip(*(loop_pass.made for loop_pass in counted), strict=True))
    )
    batches = max(costs.batches, 1)
    return Seen(
        setting=setting,
        batches=steady,
        step=sum(loop_pass.marks[-1] - loop_pass.marks[-loop_pass.steady - 1] for loop_pass in counted)
        / steady,
        wait=sum(sum(loop_pass.waits[-loop_pass.steady :]) for loop_pass in counted) / steady,
        first=first,
        ready=sum(sum(loop_pass.counts[-loop_pass.steady :]) for loop_pass in counted) / steady
        if setting.workers
        else -1.0,
        had=cpu / (cpu + delay) if cpu + delay > 0 else -1.0,
        made=costs.batches,
        made_cpu=costs.cpu / batches,
        made_wait=costs.wait / batches,
        made_delay=costs.delay / batches,
        read=costs.read / batches,
        faults=costs.faults / batches,
    )


def count_ready(iterator: Any) -> int:
    """Count the batches that are ready: in the queue, or received out of order."""
    queue = getattr(iterator, "_data_queue", None)
    if queue is None:
        return 0
    try:
        received = sum(len(task) == 2 for task in iterator._task_info.values())
        return int(queue.qsize()) + received
    except (NotImplementedError, AttributeError):
        return 0


def _pretend(step: float, busy: float) -> None:
    """Simulate a training step: compute for the share `busy`, and sleep for the rest."""
    end = time.thread_time_ns() + int(step * busy)
    while time.thread_time_ns() < end:
        pass
    if busy < 1 and step > 0:
        time.sleep(step * (1 - busy) / 1e9)
