"""Find how host threads depend on each other: the main thread and autograd's hand over to each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gapless.replay.waits import LaunchLinks, WaitTable
from gapless.trace.timeline import Bools, HostKind, Ints, Timeline, distinct, union

MIN_PAUSE_NS = 30_000
"""A thread idle for this long may be waiting for another."""


@dataclass(frozen=True)
class Handovers:
    """Moments at which a thread continues because another has stopped.

    The thread `to` was idle from `start` to `end`; the thread `source` stopped at `stopped`, in between, and
    is idle at `end` too.
    """

    to: Ints
    start: Ints
    end: Ints
    source: Ints
    stopped: Ints


def active_threads(timeline: Timeline, links: LaunchLinks, table: WaitTable) -> list[int]:
    """Return the threads that launch device work or wait for it; polling does not count."""
    rows = np.concatenate([links.call[links.call >= 0], table.host])
    threads: list[int] = distinct(timeline.host.thread[rows]).tolist()
    return threads


def find_handovers(timeline: Timeline, threads: list[int]) -> Handovers:
    """Find where these threads wait for each other, from their pauses."""
    pauses = {thread: _find_pauses(timeline, thread) for thread in threads} if len(threads) > 1 else {}
    rows: list[tuple[int, int, int, int, int]] = []
    for to, (starts, ends) in pauses.items():
        best = np.full(len(starts), -1, np.int64)
        source = np.full(len(starts), -1, np.int64)
        for other_thread, (stops, resumes) in pauses.items():
            if other_thread == to or not len(stops):
                continue
            at = np.searchsorted(stops, ends, side="right") - 1
            stopped, resumed = stops[np.maximum(at, 0)], resumes[np.maximum(at, 0)]
            fits = (at >= 0) & (stopped > starts) & (resumed > ends) & (stopped > best)
            best[fits], source[fits] = stopped[fits], other_thread
        for row in np.flatnonzero((source >= 0) & (ends <= timeline.span[1])).tolist():
            rows.append((to, int(starts[row]), int(ends[row]), int(source[row]), int(best[row])))
    columns = np.array(rows, np.int64).reshape(-1, 5).T
    return Handovers(*columns)


def _find_pauses(timeline: Timeline, thread: int) -> tuple[Ints, Ints]:
    """Return the intervals in which `thread` runs no operator and no call, including those at its ends."""
    first, last = timeline.thread_rows[thread]
    host = timeline.host
    kind = host.kind[first:last]
    rows = first + np.flatnonzero((kind == HostKind.OPERATOR) | (kind == HostKind.CALL))
    rows = rows[_is_running(timeline, rows)]
    begin, end = union(host.start[rows], host.end[rows])
    low, high = timeline.span
    starts, ends = np.concatenate([[low - 1], end]), np.concatenate([begin, [high + 1]])
    long = ends - starts >= MIN_PAUSE_NS
    return starts[long], ends[long]


def _is_running(timeline: Timeline, rows: Ints) -> Bools:
    """Mark rows that run, as opposed to ranges that only enclose others (steps, user's ranges in old files).

    An operator's name has a namespace (``aten::mm``); a row without one counts only if it encloses nothing.
    """
    host = timeline.host
    namespaced = timeline.names_where(lambda name: "::" in name)
    inner = np.zeros(len(rows), bool)
    inner[:-1] = host.start[rows[1:]] < host.end[rows[:-1]]
    result: Bools = (host.kind[rows] == HostKind.CALL) | namespaced[host.name[rows]] | ~inner
    return result
