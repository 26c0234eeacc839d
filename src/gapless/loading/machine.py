"""Measure what the machine offers this process: cores, their other users, memory."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gapless.cores import CGROUP, allowed_cores, cgroup_quota
from gapless.model.loading import Machine

_STAT_FILE = Path("/proc/stat")
_WARM_UP_SHARE = 0.25
"""First share of a trial that is not counted."""
_MAX_PROCESSES = 32
"""Processes run at once, at most."""
_TRIALS = 6
"""Trials alone and together, to tell a slowdown from chance."""
_MAX_SPEED_TOGETHER = 0.75
"""Cores at least this fast together count as independent: hyperthreads of one core are slower."""
_MIN_SECONDS = 0.1
"""Below this time the system's ticks are too coarse."""
_FULL_LOAD, _NO_LOAD = 0.95, 0.03
"""Load counted as fully busy, and as idle."""


def measure_machine(start: str, seconds: float = 0.0) -> Machine:
    """Measure the machine; with `seconds` also the load of other programs and the speed of cores together."""
    limit = cgroup_quota()
    count = allowed_cores()
    other_load = measure_other_load(count, seconds / 2) if seconds > 0 else 0.0
    together = 1.0
    if seconds > 0 and hasattr(os, "fork") and 1 < count <= _MAX_PROCESSES and other_load < count / 2:
        together = speed_together(count, seconds / 2)
    return Machine(
        allowed=count,
        quota=limit,
        others=other_load,
        together=together,
        memory=free_memory(),
        shared=_free_shared_memory(),
        start=start,
    )


def measure_other_load(count: int, seconds: float, stat: Path = _STAT_FILE) -> float:
    """Return how many other processes compute on this process's cores, averaged over `seconds`; 0 if unknown.

    That is the processor time used while this process sleeps. If the cores are fully busy, processes started
    here measure what share of them they get.
    """
    before, own = _used_seconds(stat), time.process_time()
    if before < 0:
        return 0.0
    begin = time.perf_counter()
    time.sleep(seconds / 2)
    passed = time.perf_counter() - begin
    used = max((_used_seconds(stat) - before - (time.process_time() - own)) / passed, 0.0)
    if used < _FULL_LOAD * count or not hasattr(os, "fork"):
        return round(used, 2) if used > _NO_LOAD else 0.0
    got = sum(
        cpu / max(wall, 1e-9) for _, cpu, wall in _spin_together(min(count, _MAX_PROCESSES), seconds / 2)
    )
    # Equal shares: n of n + other_load processes have n / (n + other_load) of the cores.
    return round(min(count, _MAX_PROCESSES) * max(count / max(got, 1e-3) - 1.0, 0.0), 2)


def _used_seconds(path: Path = _STAT_FILE) -> float:
    """Return seconds of processor time used on this process's cores since boot; -1 if unknown."""
    return _used_and_stolen(path)[0]


def _used_and_stolen(path: Path = _STAT_FILE) -> tuple[float, float]:
    """Return seconds used on these cores, and seconds a hypervisor kept them for others; -1 if unknown."""
    affinity = getattr(os, "sched_getaffinity", None)
    mine = affinity(0) if affinity else ()
    total, stolen, has_cores = 0, 0, False
    with suppress(OSError, ValueError, IndexError):
        for row in path.read_text().splitlines():
            name, *values = row.split()
            if name[:3] == "cpu" and name[3:].isdigit() and int(name[3:]) in mine:
                user, nice, system, _, _, hard, soft = (int(value) for value in values[:7])
                stolen += int(values[7]) if len(values) > 7 else 0
                total, has_cores = total + user + nice + system + hard + soft, True
        tick = os.sysconf("SC_CLK_TCK")
        return (total / tick, stolen / tick) if has_cores else (-1.0, -1.0)
    return -1.0, -1.0


_CPU_FOLDER = Path("/sys/devices/system/cpu")


def count_throttling(folder: Path = _CPU_FOLDER) -> int:
    """Return how often the cores slowed down for heat since boot; 0 if unknown."""
    total = 0
    for file in folder.glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
        with suppress(OSError, ValueError):
            total += int(file.read_text())
    return total


class OtherLoad:
    """The load of other programs on this process's cores since creation.

    `own` returns the seconds of processor time that do not count: by default this process and its ended
    children. `stat` is the file of processor times.
    """

    def __init__(self, own: Callable[[], float] | None = None, stat: Path = _STAT_FILE) -> None:
        self._own, self._stat = own or _own_seconds, stat
        self._began = time.perf_counter()
        self._used, self._kept = _used_and_stolen(stat)
        self._had, self._hot = self._own(), count_throttling()

    def cores(self) -> float:
        """Return the average number of cores used; -1 if unknown, or not known yet."""
        passed = time.perf_counter() - self._began
        if self._used < 0 or passed < _MIN_SECONDS:
            return -1.0
        return max((_used_and_stolen(self._stat)[0] - self._used - (self._own() - self._had)) / passed, 0.0)

    def stolen(self) -> float:
        """Return the average number of cores kept by the hypervisor."""
        passed = time.perf_counter() - self._began
        return (
            max(_used_and_stolen(self._stat)[1] - self._kept, 0.0) / passed
            if self._used >= 0 and passed >= _MIN_SECONDS
            else 0.0
        )

    def throttled(self) -> int:
        """Return how often the cores slowed down for heat."""
        return count_throttling() - self._hot


def group_seconds(processes: Path = Path("/proc")) -> float:
    """Return seconds of processor time of this process's group: itself and all descendants, ended or not.

    Programs that an item starts (a decoder, a shell) do not count as other programs.
    """
    group, total = os.getpgrp(), 0
    for folder in processes.glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                total += sum(int(field) for field in fields[11:15])
    return total / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    user, system, ended_user, ended_system, _ = os.times()
    return user + system + ended_user + ended_system


def speed_together(count: int, seconds: float) -> float:
    """Return the speed of a core while `count` processes compute, relative to one process.

    Tried alternately, many times: the speed of a core also changes by itself and with its neighbours. Only a
    slowdown seen in most trials counts.
    """
    each = seconds / (2 * _TRIALS)
    parts = []
    for _ in range(_TRIALS):
        alone, all_of_them = (_turns_per_second(_spin_together(number, each)) for number in (1, count))
        if alone > 0 and all_of_them > 0:
            parts.append(all_of_them / alone)
    part = statistics.quantiles(parts, n=4)[2] if len(parts) > 1 else 1.0
    return round(part, 2) if part < _MAX_SPEED_TOGETHER else 1.0


def _turns_per_second(results: list[tuple[float, float, float]]) -> float:
    """Return turns per second of processor time."""
    cpu = sum(cpu for _, cpu, _ in results)
    return sum(turns for turns, _, _ in results) / cpu if cpu > 0 else 0.0


def _spin_together(count: int, seconds: float) -> list[tuple[float, float, float]]:
    """Return turns, processor time and wall time of `count` processes that compute at the same time."""
    begin = time.perf_counter() + 0.003 * count
    children: list[tuple[int, int]] = []
    try:
        for _ in range(count):
            reader, writer = os.pipe()
            pid = os.fork()
            if not pid:
                _spin_and_tell(writer, begin, seconds)
            os.close(writer)
            children.append((pid, reader))
        results = []
        for _, reader in children:
            with os.fdopen(os.dup(reader), "rb") as pipe:
                words = pipe.read().split()
            if len(words) == 3:
                results.append((float(words[0]), float(words[1]), float(words[2])))
        return results
    finally:
        for pid, reader in children:
            os.close(reader)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _spin_and_tell(writer: int, begin: float, seconds: float) -> None:
    """In a child: compute from `begin` on, report how much, and exit."""
    try:
        time.sleep(max(begin - time.perf_counter(), 0.0))
        # A new process waits for its turn; then it gets as much as the older ones.
        settled, end = begin + _WARM_UP_SHARE * seconds, begin + seconds
        table = list(range(256))
        while time.perf_counter() < settled:
            sum(table)
        start, cpu, turns = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() < end:
            turns += 1
            sum(table)
        wall = time.perf_counter() - start
        os.write(writer, f"{turns} {time.process_time() - cpu} {wall}".encode())
    finally:
        os._exit(0)


def free_memory() -> int:
    """Return free memory in bytes within the control group's limit; -1 if unknown."""
    free = -1
    with suppress(OSError, ValueError):
        for row in Path("/proc/meminfo").read_text().splitlines():
            if row.startswith("MemAvailable:"):
                free = int(row.split()[1]) * 1024
    with suppress(OSError, ValueError):
        limit = int((CGROUP / "memory.max").read_text())
        left = limit - int((CGROUP / "memory.current").read_text())
        free = left if free < 0 else min(free, left)
    return free


def _free_shared_memory() -> int:
    """Return free bytes of shared memory, which passes tensors between processes; -1 if unknown."""
    with suppress(OSError, AttributeError):
        status = os.statvfs("/dev/shm")
        return status.f_bavail * status.f_frsize
    return -1
