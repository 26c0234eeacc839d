"""Find the steps of a profile, as marked by the profiler's schedule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gapless.trace.timeline import HostKind, Ints, Timeline


@dataclass(frozen=True)
class MarkedSteps:
    """Intervals of one thread, in nanoseconds since the first event, in order."""

    thread: int
    start: Ints
    end: Ints


def find_steps(timeline: Timeline, threads: list[int]) -> MarkedSteps:
    """Return the ``ProfilerStep#…`` ranges of one of `threads`; without any, the whole span as one step."""
    host = timeline.host
    named = timeline.names_where(lambda name: name.startswith("ProfilerStep"))
    rows = np.flatnonzero(named[host.name] & (host.kind != HostKind.FRAME) & np.isin(host.thread, threads))
    if len(rows):
        thread = int(host.thread[rows[0]])
        rows = rows[host.thread[rows] == thread]
        return MarkedSteps(thread, host.start[rows], host.end[rows])
    low, high = timeline.span
    return MarkedSteps(threads[0] if threads else 0, np.array([low]), np.array([high]))
