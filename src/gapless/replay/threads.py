"""How the threads of the host depend on each other: the main thread and autograd's hand over."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gapless.replay.waits import Links, Waits
from gapless.trace.timeline import Bools, HostKind, Ints, Timeline, distinct, union

PAUSE = 30_000
"""Nanoseconds: a thread that does nothing for this long may be waiting for another."""


@dataclass(frozen=True)
class Handovers:
    """Moments at which a thread goes on because another thread has stopped.

    The thread `to` did nothing from `start` to `end`; the thread `source` came to its own stop at `stopped`,
    in between, and does nothing at `end` either.
    """

    to: Ints
    start: Ints
    end: Ints
    source: Ints
    stopped: Ints


def active_threads(timeline: Timeline, known: Links, table: Waits) -> list[int]:
    """The threads that launch device work or wait for it; those that only ask whether it is done are not."""
    rows = np.concatenate([known.call[known.call >= 0], table.host])
    found: list[int] = distinct(timeline.host.thread[rows]).tolist()
    return found


def handovers(timeline: Timeline, threads: list[int]) -> Handovers:
    """Where these threads wait for each other, told by their pauses."""
    pauses = {thread: _pauses(timeline, thread) for thread in threads} if len(threads) > 1 else {}
    found: list[tuple[int, int, int, int, int]] = []
    for to, (starts, ends) in pauses.items():
        best = np.full(len(starts), -1, np.int64)
        source = np.full(len(starts), -1, np.int64)
        for other, (stops, resumes) in pauses.items():
            if other == to or not len(stops):
                continue
            at = np.searchsorted(stops, ends, side="right") - 1
            stopped, resumed = stops[np.maximum(at, 0)], resumes[np.maximum(at, 0)]
            fits = (at >= 0) & (stopped > starts) & (resumed > ends) & (stopped > best)
            best[fits], source[fits] = stopped[fits], other
        for row in np.flatnonzero((source >= 0) & (ends <= timeline.span[1])).tolist():
            found.append((to, int(starts[row]), int(ends[row]), int(source[row]), int(best[row])))
    columns = np.array(found, np.int64).reshape(-1, 5).T
    return Handovers(*columns)


def _pauses(timeline: Timeline, thread: int) -> tuple[Ints, Ints]:
    """The stretches in which `thread` runs no operator and no call, those at its ends included."""
    first, last = timeline.thread_rows[thread]
    host = timeline.host
    kind = host.kind[first:last]
    rows = first + np.flatnonzero((kind == HostKind.OPERATOR) | (kind == HostKind.CALL))
    rows = rows[_works(timeline, rows)]
    begin, end = union(host.start[rows], host.end[rows])
    low, high = timeline.span
    starts, ends = np.concatenate([[low - 1], end]), np.concatenate([begin, [high + 1]])
    long = ends - starts >= PAUSE
    return starts[long], ends[long]


def _works(timeline: Timeline, rows: Ints) -> Bools:
    """Tells what runs from ranges that only enclose it (steps, a user's own ranges in old files).

    An operator's name has a namespace (``aten::mm``); what has none counts only if nothing is within it.
    """
    host = timeline.host
    namespaced = timeline.names_where(lambda name: "::" in name)
    inner = np.zeros(len(rows), bool)
    inner[:-1] = host.start[rows[1:]] < host.end[rows[:-1]]
    result: Bools = (host.kind[rows] == HostKind.CALL) | namespaced[host.name[rows]] | ~inner
    return result
