"""The steps of a profile, as the profiler's schedule marks them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gapless.trace.timeline import HostKind, Ints, Timeline


@dataclass(frozen=True)
class Steps:
    """Spans of one thread, in nanoseconds since the first event, in order."""

    thread: int
    start: Ints
    end: Ints


def steps(timeline: Timeline, threads: list[int]) -> Steps:
    """The ``ProfilerStep#…`` ranges of one of `threads`; without any, the whole as one step."""
    host = timeline.host
    named = timeline.names_where(lambda name: name.startswith("ProfilerStep"))
    rows = np.flatnonzero(named[host.name] & (host.kind != HostKind.FRAME) & np.isin(host.thread, threads))
    if len(rows):
        thread = int(host.thread[rows[0]])
        rows = rows[host.thread[rows] == thread]
        return Steps(thread, host.start[rows], host.end[rows])
    low, high = timeline.span
    return Steps(threads[0] if threads else 0, np.array([low]), np.array([high]))
