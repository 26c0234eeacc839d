"""What runs when in this process: the cores that it may use, within the quota of its control groups, and the
garbage collector.
"""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


@contextmanager
def no_collection() -> Iterator[None]:
    """Switch off the garbage collector, for work that leaves no cycles behind, or is timed."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def allowed_cores() -> int:
    """Return the number of cores that the scheduler may use for this process."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux has it
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def cgroup_quota(groups: Path = CGROUP, membership: Path = _MEMBERSHIP) -> float:
    """Return the smallest limit, in cores, of this process's control group and its ancestors; -1 if none.

    Both versions of control groups are read. In a container the group's own path is often not visible, but
    its root, which is the container's, is.
    """
    least = math.inf
    for folder, second in _folders(groups, membership):
        with suppress(OSError, ValueError, ZeroDivisionError):
            if second:
                limit, period = (folder / "cpu.max").read_text().split()
                limit_in_cores = math.inf if limit == "max" else int(limit) / int(period)
            else:
                micro = int((folder / "cpu.cfs_quota_us").read_text())
                limit_in_cores = (
                    micro / int((folder / "cpu.cfs_period_us").read_text()) if micro > 0 else math.inf
                )
            least = min(least, limit_in_cores)
    return -1.0 if math.isinf(least) else least


def _folders(groups: Path, membership: Path) -> list[tuple[Path, bool]]:
    """Return the folders of this process's group and its ancestors, each with whether it is of version 2."""
    folders = [(groups, True), (groups / "cpu", False), (groups / "cpu,cpuacct", False)]
    with suppress(OSError):
        for row in membership.read_text().splitlines():
            _, controllers, path = row.split(":", 2)
            if controllers == "" or "cpu" in controllers.split(","):
                root = groups / controllers if controllers else groups
                parts = [part for part in path.split("/") if part not in ("", "..")]
                steps = [root.joinpath(*parts[: depth + 1]) for depth in range(len(parts))]
                folders += [(step, not controllers) for step in steps]
    return folders


def usable_cores(groups: Path = CGROUP, membership: Path = _MEMBERSHIP) -> int:
    """Return how many compute-bound processes make sense: the allowed cores, within the quota."""
    limit = cgroup_quota(groups, membership)
    return allowed_cores() if limit < 0 else max(1, min(allowed_cores(), math.ceil(limit)))
