"""Measure how long driver calls took in the recorded run, from the times of its trace."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import Any

from gapless.memory.rewind import FREES
from gapless.model.memory_calls import CallTimes, size_class

_MIN_CALLS = 10
"""Fewer calls of a kind are not enough for a median."""
_MIN_RETRIES = 3
"""Retries needed to measure draining: they are rare, and each is long."""
_MAX_GAP_US = 1_000_000
"""Longer gaps (microseconds) are something else, such as evaluation."""

_MAX_TIME_US = 1 << 60
"""Larger values are no times."""


def has_times(trace: list[Any]) -> bool:
    """Whether each entry has a time in microseconds (torch 2.1 and later)."""
    return bool(trace) and all(
        type(entry.get("time_us")) is int and 0 <= entry["time_us"] < _MAX_TIME_US for entry in trace
    )


def call_times(trace: list[Any]) -> CallTimes:
    """Return median gaps before driver calls, less the gap before a request served from the cache.

    The trace has the time at which each call ended, so the program's work since the previous entry is in the
    gap too; it is assumed to be as long as before a cache hit. Between two ``cudaFree`` of one release
    nothing else happens. The gap before the first of a release that serves a request includes draining the
    GPU.
    """
    if not has_times(trace):
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
        if not 0 <= gap < _MAX_GAP_US:
            continue
        if kinds[1] == "alloc" and kinds[0] not in ("segment_alloc", "segment_map"):
            hits.append(gap)
        elif kinds[1] == "segment_alloc":
            mallocs[size_class(entry["size"])].append(gap)
        elif kinds[1] == "segment_map":
            maps.append(gap / max(entry["size"] // (20 << 20), 1))
        elif kinds == ("segment_free", "segment_free"):
            frees.append(gap)
        elif kinds[1] == "segment_free" and kinds[0] not in FREES and serves_request(trace, at):
            drains.append(gap)
        elif kinds == ("segment_unmap", "segment_unmap"):
            unmaps.append(gap / max(entry["size"] // (20 << 20), 1))
    if sum(map(len, mallocs)) < _MIN_CALLS and len(maps) < _MIN_CALLS:
        return CallTimes()
    typical = CallTimes()
    usual = median(hits) if hits else 0.0
    free = _nanoseconds(frees, 0.0, typical.free)
    first, *larger = (
        _nanoseconds(gaps, usual, default)
        for gaps, default in zip(mallocs, (typical.malloc, *typical.larger), strict=True)
    )
    return CallTimes(
        malloc=first,
        larger=(larger[0], larger[1], larger[2]),
        free=free,
        drain=max(_nanoseconds(drains, usual, -1, _MIN_RETRIES) - free, 0)
        if len(drains) >= _MIN_RETRIES
        else -1,
        map=_nanoseconds(maps, usual, typical.map),
        unmap=_nanoseconds(unmaps, 0.0, typical.unmap),
        source="measured",
    )


def serves_request(trace: list[Any], at: int) -> bool:
    """Whether memory released from `at` on serves a request: the driver is called for memory next."""
    while at < len(trace) and trace[at]["action"] in FREES:
        at += 1
    return at < len(trace) and trace[at]["action"] in ("segment_alloc", "segment_map", "oom")


def _nanoseconds(gaps: list[float], usual: float, typical: int, min_gaps: int = _MIN_CALLS) -> int:
    if len(gaps) < min_gaps:
        return typical
    return max(round(1000 * (median(gaps) - usual)), 0)
