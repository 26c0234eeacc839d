"""Measure how the host feeds the device with launches."""

from __future__ import annotations

import re

import numpy as np

from gapless.analyze.profile.trace_steps import StepSpans, covered_time
from gapless.model.profile import Launches
from gapless.trace.timeline import Bools, HostKind, Ints, Timeline, WorkKind, union

_GRAPH = re.compile(r"(?:cuda|hip|cu)GraphLaunch")


def count_launches(timeline: Timeline, steps: StepSpans, device: int) -> Launches:
    """Count launches in the steps; the operations of a launched graph count one by one.

    An operation is pending from the return of its launching call until it begins.
    """
    work, host = timeline.work, timeline.host
    rows = np.flatnonzero(work.device == device)
    call = timeline.launchers[rows]
    inside = steps.at(work.start[rows]) >= 0
    linked = rows[call >= 0]
    call = call[call >= 0]
    within = steps.at(work.start[linked]) >= 0
    kernel = within & (work.kind[linked] == WorkKind.KERNEL)
    delay = np.maximum(work.start[linked] - host.start[call], 0)[within]
    distinct = np.flatnonzero(np.bincount(call[within], minlength=1))
    depth, empty = _queue_depth(steps, np.minimum(host.end[call], work.start[linked]), work.start[linked])
    return Launches(
        count=int(inside.sum()),
        short=_count_short(timeline, linked, call, kernel),
        depth=depth,
        empty=empty,
        delay=_median(delay),
        call=_median(host.end[distinct] - host.start[distinct]),
        kernel=_median(work.end[linked[kernel]] - work.start[linked[kernel]]),
        graphs=_count_graphs(timeline, steps),
    )


def _queue_depth(steps: StepSpans, launched: Ints, begun: Ints) -> tuple[float, float]:
    """Return the mean number of pending operations and the share of the time without any."""
    if not steps.total:
        return 0.0, 0.0
    pending = int(covered_time(steps.start, steps.end, launched, begun).sum())
    nonempty = int(covered_time(*union(launched, begun), steps.start, steps.end).sum())
    return round(pending / steps.total, 3), round(1 - nonempty / steps.total, 6)


def _count_short(timeline: Timeline, linked: Ints, call: Ints, kernel: Bools) -> int:
    """Count kernels shorter than their launch, or than their share of a graph's launch."""
    length = timeline.work.end[linked] - timeline.work.start[linked]
    sharing = np.bincount(call, minlength=1)
    cost = (timeline.host.end[call] - timeline.host.start[call]) / sharing[call]
    return int(np.count_nonzero(kernel & (length < cost)))


def _count_graphs(timeline: Timeline, steps: StepSpans) -> int:
    wanted = timeline.names_where(_GRAPH.match)
    if not wanted.any():
        return 0
    rows = wanted[timeline.host.name] & (timeline.host.kind == HostKind.CALL)
    return int(np.count_nonzero(steps.at(timeline.host.start[rows]) >= 0))


def _median(values: Ints) -> int:
    return int(np.median(values)) if len(values) else 0
