"""What the machine has for this process: cores, who else uses them, and memory."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gapless.cores import CGROUP, allowed, quota
from gapless.model.loading import Machine

_STATISTICS = Path("/proc/stat")
_SETTLED = 0.25
"""Part of a try that does not count."""
_MOST = 32
"""More processes than these are not tried at once."""
_ROUNDS = 6
_SLOWER = 0.75
"""Cores that are at least so fast together are taken to be as fast as alone: halves of one are slower."""
_SHORT = 0.1
"""Seconds in which the system's ticks say nothing yet."""
_FULL, _NOBODY = 0.95, 0.03
"""Parts of the cores that are all of them, and none."""


def machine(start: str, seconds: float = 0.0) -> Machine:
    """What there is. With `seconds` it is looked who else computes, and how fast cores are together."""
    limit = quota()
    count = allowed()
    others = beside(count, seconds / 2) if seconds > 0 else 0.0
    together = 1.0
    if seconds > 0 and hasattr(os, "fork") and 1 < count <= _MOST and others < count / 2:
        together = speed_together(count, seconds / 2)
    return Machine(
        allowed=count,
        quota=limit,
        others=others,
        together=together,
        memory=_available(),
        shared=_shared(),
        start=start,
    )


def beside(count: int, seconds: float) -> float:
    """Processes of others that compute on this process's cores, in the mean over `seconds`; 0 if untold.

    As many as would be needed to use the processor time that is used while this process sleeps. Where that
    is all there is, processes of our own try how much they get of it.
    """
    before, own = _busy(), time.process_time()
    if before < 0:
        return 0.0
    begin = time.perf_counter()
    time.sleep(seconds / 2)
    passed = time.perf_counter() - begin
    used = max((_busy() - before - (time.process_time() - own)) / passed, 0.0)
    if used < _FULL * count or not hasattr(os, "fork"):
        return round(used, 2) if used > _NOBODY else 0.0
    got = sum(cpu / max(wall, 1e-9) for _, cpu, wall in _spin_together(min(count, _MOST), seconds / 2))
    # Equal parts: n of n + others processes have n / (n + others) of the cores.
    return round(min(count, _MOST) * max(count / max(got, 1e-3) - 1.0, 0.0), 2)


def _busy(path: Path = _STATISTICS) -> float:
    """Seconds of processor time that were used on this process's cores since the start; -1 if untold."""
    return _used(path)[0]


def _used(path: Path = _STATISTICS) -> tuple[float, float]:
    """The same, and seconds in which a hypervisor kept these cores for others; -1 if untold."""
    affinity = getattr(os, "sched_getaffinity", None)
    mine = affinity(0) if affinity else ()
    total, stolen, seen = 0, 0, False
    with suppress(OSError, ValueError, IndexError):
        for row in path.read_text().splitlines():
            name, *values = row.split()
            if name[:3] == "cpu" and name[3:].isdigit() and int(name[3:]) in mine:
                user, nice, system, _, _, hard, soft = (int(value) for value in values[:7])
                stolen += int(values[7]) if len(values) > 7 else 0
                total, seen = total + user + nice + system + hard + soft, True
        tick = os.sysconf("SC_CLK_TCK")
        return (total / tick, stolen / tick) if seen else (-1.0, -1.0)
    return -1.0, -1.0


_HEAT = Path("/sys/devices/system/cpu")


def throttled(folder: Path = _HEAT) -> int:
    """How often the cores slowed down for heat since the start; 0 where it is not told."""
    total = 0
    for file in folder.glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
        with suppress(OSError, ValueError):
            total += int(file.read_text())
    return total


class Others:
    """What other programs used of this process's cores since it was made.

    `own` gives the seconds of processor time of those who are no others: by default this process and those of
    its children that have ended.
    """

    def __init__(self, own: Callable[[], float] | None = None) -> None:
        self._own = own or _own
        self._began = time.perf_counter()
        self._used, self._kept = _used()
        self._had, self._hot = self._own(), throttled()

    def cores(self) -> float:
        """Cores, in the mean; -1 where it is not told, or not yet."""
        passed = time.perf_counter() - self._began
        if self._used < 0 or passed < _SHORT:
            return -1.0
        return max((_used()[0] - self._used - (self._own() - self._had)) / passed, 0.0)

    def stolen(self) -> float:
        """Cores that the hypervisor kept, in the mean."""
        passed = time.perf_counter() - self._began
        return max(_used()[1] - self._kept, 0.0) / passed if self._used >= 0 and passed >= _SHORT else 0.0

    def throttled(self) -> int:
        """How often the cores slowed down for heat."""
        return throttled() - self._hot


def of_group(processes: Path = Path("/proc")) -> float:
    """Seconds of processor time of this process's group: itself and all that it has led to, ended or not.

    What an item starts (a decoder, a shell) is none of the others.
    """
    group, total = os.getpgrp(), 0
    for folder in processes.glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                total += sum(int(field) for field in fields[11:15])
    return total / os.sysconf("SC_CLK_TCK")


def _own() -> float:
    user, system, ended_user, ended_system, _ = os.times()
    return user + system + ended_user + ended_system


def speed_together(count: int, seconds: float) -> float:
    """How fast a core is when `count` processes compute, as a part of its speed when one does.

    Tried in turn, many times: the speed of a core also changes by itself, and with what neighbours on the
    same machine do. What is not seen in most tries, or may be such a change, is none.
    """
    each = seconds / (2 * _ROUNDS)
    parts = []
    for _ in range(_ROUNDS):
        alone, all_of_them = (_speed(_spin_together(number, each)) for number in (1, count))
        if alone > 0 and all_of_them > 0:
            parts.append(all_of_them / alone)
    part = statistics.quantiles(parts, n=4)[2] if len(parts) > 1 else 1.0
    return round(part, 2) if part < _SLOWER else 1.0


def _speed(told: list[tuple[float, float, float]]) -> float:
    """Turns in a second of processor time."""
    cpu = sum(cpu for _, cpu, _ in told)
    return sum(turns for turns, _, _ in told) / cpu if cpu > 0 else 0.0


def _spin_together(count: int, seconds: float) -> list[tuple[float, float, float]]:
    """Turns, processor time and wall time of `count` processes that compute at the same time."""
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
        told = []
        for _, reader in children:
            with os.fdopen(os.dup(reader), "rb") as pipe:
                words = pipe.read().split()
            if len(words) == 3:
                told.append((float(words[0]), float(words[1]), float(words[2])))
        return told
    finally:
        for pid, reader in children:
            os.close(reader)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _spin_and_tell(writer: int, begin: float, seconds: float) -> None:
    """In a child: compute from `begin` on, tell how much, and end."""
    try:
        time.sleep(max(begin - time.perf_counter(), 0.0))
        # A new process waits for its turn; then it gets as much as those that have been there.
        settled, end = begin + _SETTLED * seconds, begin + seconds
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


def _available() -> int:
    """Free memory in bytes, within the control group's limit; -1 where it is not told."""
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


def _shared() -> int:
    """Free bytes where tensors go from process to process; -1 where it is not told."""
    with suppress(OSError, AttributeError):
        told = os.statvfs("/dev/shm")
        return told.f_bavail * told.f_frsize
    return -1
