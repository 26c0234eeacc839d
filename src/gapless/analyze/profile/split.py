"""Where the time of the steps goes, and how much of the device is used."""

from __future__ import annotations

import re

import numpy as np

from gapless.analyze.profile.trace_steps import StepSpans, covered_time, is_communication, lies_within
from gapless.model.profile import Split
from gapless.trace.names import LOADING
from gapless.trace.timeline import Bools, HostKind, Ints, Timeline, WorkKind, union

_OPTIMIZER = re.compile(r"Optimizer\.")
_HOST_COMMUNICATION = re.compile(r"gloo:")
"""Collectives that the host carries out; for all others it only launches kernels."""
_FULL_BLOCK = 1_000_000
"""One block per multiprocessor, in millionths."""


def split_time(timeline: Timeline, steps: StepSpans, device: int) -> Split:
    """Split the time of all steps; each nanosecond goes to the first kind that applies, in `Split`'s order.

    Each kind gets what its spans add to the union of those before it.
    """
    start, end = np.empty(0, np.int64), np.empty(0, np.int64)
    spent, before = [], 0
    for more_start, more_end in _spans_by_kind(timeline, device):
        if len(more_start):
            start, end = union(np.append(start, more_start), np.append(end, more_end))
        so_far = int(covered_time(start, end, steps.start, steps.end).sum())
        spent.append(so_far - before)
        before = so_far
    kernel, memcpy, memset, communication, runtime, loading, host = spent
    return Split(
        kernel=kernel,
        memcpy=memcpy,
        memset=memset,
        communication=communication,
        runtime=runtime,
        loading=loading,
        host=host,
        other=steps.total - before,
    )


def _spans_by_kind(timeline: Timeline, device: int) -> list[tuple[Ints, Ints]]:
    """Return the spans of every kind, in order of priority."""
    work, host = timeline.work, timeline.host
    on_device = work.device == device
    communicates = is_communication(timeline)
    device_rows = [
        on_device & (work.kind == WorkKind.KERNEL) & ~communicates,
        on_device & (work.kind == WorkKind.MEMCPY),
        on_device & (work.kind == WorkKind.MEMSET),
        on_device & communicates,
    ]
    spans = [(work.start[rows], work.end[rows]) for rows in device_rows]
    operator = host.kind == HostKind.OPERATOR
    call = host.kind == HostKind.CALL
    marked = operator | (host.kind == HostKind.ANNOTATION)
    loading = _name_matches(timeline, LOADING) & marked
    carried = _name_matches(timeline, _HOST_COMMUNICATION) & marked
    spans[3] = (np.append(spans[3][0], host.start[carried]), np.append(spans[3][1], host.end[carried]))
    plain = operator | (marked & _name_matches(timeline, _OPTIMIZER))
    return spans + [
        (host.start[rows], host.end[rows]) for rows in (call, loading, _outermost_rows(timeline, plain))
    ]


def _name_matches(timeline: Timeline, pattern: re.Pattern[str]) -> Bools:
    """Return for each row of `host` whether its name matches."""
    numbers = np.flatnonzero(timeline.names_where(pattern.match))
    if not len(numbers):
        return np.zeros(len(timeline.host), bool)
    is_match: Bools = np.isin(timeline.host.name, numbers)
    return is_match


def _outermost_rows(timeline: Timeline, rows: Bools) -> Ints:
    """Return the rows not covered by an earlier one of their thread: the same union of far fewer spans."""
    positions = np.flatnonzero(rows)
    outer: Ints = positions[~lies_within(timeline, positions, np.ones(len(positions), bool))]
    return outer


def utilization(timeline: Timeline, steps: StepSpans, device: int) -> float:
    """Return the share (0 to 1) of time with a kernel running, from the first step's start to the last's end.

    Communication kernels count, copies do not. -1 if the device ran no kernel.
    """
    work = timeline.work
    rows = (work.device == device) & (work.kind == WorkKind.KERNEL)
    low, high = _bounds(steps)
    if not rows.any() or high <= low:
        return -1.0
    return int(
        covered_time(*union(work.start[rows], work.end[rows]), np.array([low]), np.array([high]))[0]
    ) / (high - low)


def sm_efficiency(timeline: Timeline, steps: StepSpans, device: int) -> float:
    """Return the share (0 to 1) of multiprocessors that have a block, over the same time as `utilization`.

    At each moment the blocks per multiprocessor of the running kernels are summed and capped at 1. -1 if
    blocks per multiprocessor were not recorded.
    """
    work = timeline.work
    low, high = _bounds(steps)
    rows = np.flatnonzero((work.device == device) & (work.kind == WorkKind.KERNEL) & (work.blocks_per_sm > 0))
    if not len(rows) or high <= low:
        return -1.0
    time = np.clip(np.concatenate([work.start[rows], work.end[rows]]), low, high)
    # Millionths as integers: sums of floats would leave remainders where nothing runs.
    blocks = np.rint(work.blocks_per_sm[rows] * _FULL_BLOCK).astype(np.int64)
    order = np.argsort(time, kind="stable")
    running = np.cumsum(np.concatenate([blocks, -blocks])[order])
    filled = np.minimum(running[:-1], _FULL_BLOCK) / _FULL_BLOCK * np.diff(time[order])
    return float(filled.sum()) / (high - low)


def mean_occupancy(timeline: Timeline, steps: StepSpans, device: int) -> float:
    """Return the estimated achieved occupancy (percent), a mean over kernels weighted by time in the steps.

    -1 if it was not recorded.
    """
    work = timeline.work
    rows = np.flatnonzero((work.device == device) & (work.kind == WorkKind.KERNEL) & (work.occupancy >= 0))
    low, high = _bounds(steps)
    length = np.maximum(np.minimum(work.end[rows], high) - np.maximum(work.start[rows], low), 0)
    total = int(length.sum())
    return float((work.occupancy[rows] * length).sum()) / total if total else -1.0


def _bounds(steps: StepSpans) -> tuple[int, int]:
    """Return the start of the first step and the end of the last."""
    return (int(steps.start[0]), int(steps.end[-1])) if len(steps.start) else (0, 0)
