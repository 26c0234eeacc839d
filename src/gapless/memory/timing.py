"""What the driver's calls took in the recorded run, by the times of its trace."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import Any

from gapless.memory.rewind import FREES
from gapless.model.memory_calls import CallTimes, class_of

_ENOUGH = 10
"""Fewer calls of a kind than this are not measured by."""
_FEW = 3
"""Retries by which draining is measured: there are few, and each is long."""
_LONGEST = 1_000_000
"""Gaps over a second (in microseconds) are something else."""

_LATEST = 1 << 60


def timed(trace: list[Any]) -> bool:
    """Whether each entry has a time, in microseconds (torch 2.1 and later)."""
    return bool(trace) and all(
        type(entry.get("time_us")) is int and 0 <= entry["time_us"] < _LATEST for entry in trace
    )


def call_times(trace: list[Any]) -> CallTimes:
    """Medians of the gaps before calls, less the gap before a request that needs none.

    The trace has a time for each entry, written when the call is over, and none for its beginning: what the
    program does between two entries is in the gap too, and is taken to be what it is before a cache hit.
    Between two ``cudaFree`` of one release nothing else happens. The gap before the first one of a
    release that serves a request is, beyond that, how long the GPU took to drain.
    """
    if not timed(trace):
        return CallTimes()
    hits: list[float] = []
    mallocs: tuple[list[float], ...] = ([], [], [], [])
    frees: list[float] = []
    maps: list[float] = []
    unmaps: list[float] = []
    drains: list[float] = []
    for at, (before, entry) in enumerate(pairwise(trace), 1):
        gap = entry["time_us"] - before["time_us"]
        kinds = before["action"], entry["action"]
        if not 0 <= gap < _LONGEST:
            continue
        if kinds[1] == "alloc" and kinds[0] not in ("segment_alloc", "segment_map"):
            hits.append(gap)
        elif kinds[1] == "segment_alloc":
            mallocs[class_of(entry["size"])].append(gap)
        elif kinds[1] == "segment_map":
            maps.append(gap / max(entry["size"] // (20 << 20), 1))
        elif kinds == ("segment_free", "segment_free"):
            frees.append(gap)
        elif kinds[1] == "segment_free" and kinds[0] not in FREES and serves(trace, at):
            drains.append(gap)
        elif kinds == ("segment_unmap", "segment_unmap"):
            unmaps.append(gap / max(entry["size"] // (20 << 20), 1))
    if sum(map(len, mallocs)) < _ENOUGH and len(maps) < _ENOUGH:
        return CallTimes()
    typical = CallTimes()
    usual = median(hits) if hits else 0.0
    free = _nanoseconds(frees, 0.0, typical.free)
    first, *larger = (
        _nanoseconds(gaps, usual, one)
        for gaps, one in zip(mallocs, (typical.malloc, *typical.larger), strict=True)
    )
    return CallTimes(
        malloc=first,
        larger=(larger[0], larger[1], larger[2]),
        free=free,
        drain=max(_nanoseconds(drains, usual, -1, _FEW) - free, 0) if len(drains) >= _FEW else -1,
        map=_nanoseconds(maps, usual, typical.map),
        unmap=_nanoseconds(unmaps, 0.0, typical.unmap),
        source="measured",
    )


def serves(trace: list[Any], at: int) -> bool:
    """Whether what is given back from `at` on makes room for a request: the driver is asked next."""
    while at < len(trace) and trace[at]["action"] in FREES:
        at += 1
    return at < len(trace) and trace[at]["action"] in ("segment_alloc", "segment_map", "oom")


def _nanoseconds(gaps: list[float], usual: float, typical: int, enough: int = _ENOUGH) -> int:
    if len(gaps) < enough:
        return typical
    return max(round(1000 * (median(gaps) - usual)), 0)
