"""What the driver's calls took in the recorded run, by the times of its trace."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import Any

from gapless.model.memory import CallTimes

_ENOUGH = 10
"""Fewer calls of a kind than this are not measured by."""
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
    Between two ``cudaFree`` of one release nothing else happens.
    """
    if not timed(trace):
        return CallTimes()
    hits: list[float] = []
    mallocs: list[float] = []
    frees: list[float] = []
    maps: list[float] = []
    unmaps: list[float] = []
    for before, entry in pairwise(trace):
        gap = entry["time_us"] - before["time_us"]
        kinds = before["action"], entry["action"]
        if not 0 <= gap < _LONGEST:
            continue
        if kinds[1] == "alloc" and kinds[0] not in ("segment_alloc", "segment_map"):
            hits.append(gap)
        elif kinds[1] == "segment_alloc":
            mallocs.append(gap)
        elif kinds[1] == "segment_map":
            maps.append(gap / max(entry["size"] // (20 << 20), 1))
        elif kinds == ("segment_free", "segment_free"):
            frees.append(gap)
        elif kinds == ("segment_unmap", "segment_unmap"):
            unmaps.append(gap / max(entry["size"] // (20 << 20), 1))
    if len(mallocs) < _ENOUGH and len(maps) < _ENOUGH:
        return CallTimes()
    typical = CallTimes()
    usual = median(hits) if hits else 0.0
    return CallTimes(
        malloc=_nanoseconds(mallocs, usual, typical.malloc),
        free=_nanoseconds(frees, 0.0, typical.free),
        map=_nanoseconds(maps, usual, typical.map),
        unmap=_nanoseconds(unmaps, 0.0, typical.unmap),
        source="measured",
    )


def _nanoseconds(gaps: list[float], usual: float, typical: int) -> int:
    if len(gaps) < _ENOUGH:
        return typical
    return max(round(1000 * (median(gaps) - usual)), 0)
