"""The cores that this process may use: its affinity, within the quota of its control groups."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def allowed() -> int:
    """The cores that the scheduler may put this process on."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux has it
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def quota(groups: Path = CGROUP, membership: Path = _MEMBERSHIP) -> float:
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


def usable(groups: Path = CGROUP, membership: Path = _MEMBERSHIP) -> int:
    """How many processes that compute all the time make sense: the allowed cores, within the quota."""
    limit = quota(groups, membership)
    return allowed() if limit < 0 else max(1, min(allowed(), math.ceil(limit)))
