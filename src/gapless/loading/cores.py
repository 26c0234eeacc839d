"""What the machine has for this process: cores that it may use, and those that it really gets."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gapless.model.loading import Machine

_GROUPS, _MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_SETTLED = 0.25
"""Part of a try that does not count."""
_MOST = 32
"""More processes than these are not tried at once."""


def allowed() -> int:
    """The cores that the scheduler may put this process on."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux has it
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def quota(groups: Path = _GROUPS, membership: Path = _MEMBERSHIP) -> float:
    """The least limit, in cores, of this process's control group and those above it; -1 where there is none.

    Both versions of control groups are read. Inside a container the group's own path is often not visible;
    then its root, which is the container's, is.
    """
    least = math.inf
    for folder, second in _folders(groups, membership):
        with suppress(OSError, ValueError, ZeroDivisionError):
            if second:
                limit, period = (folder / "cpu.max").read_text().split()
                found = math.inf if limit == "max" else int(limit) / int(period)
            else:
                micro = int((folder / "cpu.cfs_quota_us").read_text())
                found = micro / int((folder / "cpu.cfs_period_us").read_text()) if micro > 0 else math.inf
            least = min(least, found)
    return -1.0 if math.isinf(least) else least


def _folders(groups: Path, membership: Path) -> list[tuple[Path, bool]]:
    """The folders of this process's group and of those above it, and whether they are of version 2."""
    found = [(groups, True), (groups / "cpu", False), (groups / "cpu,cpuacct", False)]
    with suppress(OSError):
        for row in membership.read_text().splitlines():
            _, controllers, path = row.split(":", 2)
            if controllers == "" or "cpu" in controllers.split(","):
                root = groups / controllers if controllers else groups
                parts = [part for part in path.split("/") if part not in ("", "..")]
                steps = [root.joinpath(*parts[: depth + 1]) for depth in range(len(parts))]
                found += [(step, not controllers) for step in steps]
    return found


def machine(start: str, seconds: float = 0.0) -> Machine:
    """What there is. With `seconds` it is tried what processes that compute together get done."""
    limit = quota()
    cores = allowed()
    measured: tuple[tuple[int, float], ...] = ()
    if seconds > 0 and hasattr(os, "fork"):
        measured = contention(cores, seconds)
    if not measured:
        most = float(cores) if limit < 0 else min(float(cores), limit)
        measured = ((1, min(1.0, most)), (cores, most))
    return Machine(
        allowed=cores,
        quota=limit,
        capacity=measured,
        memory=_available(),
        shared=_shared(),
        start=start,
    )


def capacity(of: Machine) -> Callable[[int], float]:
    """Cores' worth of work that n processes get done together: what was measured, and between it straight."""
    points = sorted({0: 0.0, **dict(of.capacity or ((of.allowed, float(of.allowed)),))}.items())

    def cores(count: int) -> float:
        before = points[0]
        for point in points[1:]:
            if count <= point[0]:
                part = (count - before[0]) / (point[0] - before[0])
                return before[1] + part * (point[1] - before[1])
            before = point
        return before[1]

    return cores


def contention(cores: int, seconds: float) -> tuple[tuple[int, float], ...]:
    """For 1, all and twice as many processes as cores: cores' worth of work that they get done together.

    One core's worth is what one process gets done in a second of processor time, beside whatever else runs:
    the items are measured under the same conditions. So other load, quotas, and cores that are halves of one
    (hyper-threads) all show.
    """
    tried = sorted({1, min(cores, _MOST), min(2 * cores, _MOST)})
    rounds = 2
    each = seconds / (rounds * len(tried))
    found: dict[int, list[float]] = {count: [] for count in tried}
    speeds: list[float] = []
    for _ in range(rounds):
        for count in tried:
            told = _spin_together(count, each)
            if count == 1 and told:
                speeds.append(told[0][0] / max(told[0][1], 1e-9))
            found[count].append(sum(turns / max(wall, 1e-9) for turns, _, wall in told))
    speed = sum(speeds) / len(speeds) if speeds else 0.0
    if speed <= 0:
        return ()
    result, least = [], 0.0
    for count in tried:
        # More processes together do not get less done; where they seem to, the machine was disturbed.
        least = max(least, min(sum(found[count]) / rounds / speed, float(min(count, cores))))
        result.append((count, round(least, 4)))
    return tuple(result)


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
        limit = int((_GROUPS / "memory.max").read_text())
        left = limit - int((_GROUPS / "memory.current").read_text())
        free = left if free < 0 else min(free, left)
    return free


def _shared() -> int:
    """Free bytes where tensors go from process to process; -1 where it is not told."""
    with suppress(OSError, AttributeError):
        told = os.statvfs("/dev/shm")
        return told.f_bavail * told.f_frsize
    return -1
