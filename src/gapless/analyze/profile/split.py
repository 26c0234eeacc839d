"""Where the time of the steps goes, and how much of the device is used."""

from __future__ import annotations

import re

import numpy as np

from gapless.analyze.profile.trace_steps import StepSpans, below, covered, is_communication
from gapless.model.profile import Split
from gapless.trace.names import LOADING
from gapless.trace.timeline import Bools, HostKind, Ints, Timeline, WorkKind, union

_OPTIMIZER = re.compile(r"Optimizer\.")
_HOST_COMMUNICATION = re.compile(r"gloo:")
"""Collectives that the host carries out; of the others it only launches the kernels."""
_FULL = 1_000_000
"""A multiprocessor with a block."""


def split(timeline: Timeline, steps: StepSpans, device: int) -> Split:
    """The time of all steps, each nanosecond given to the first kind in the order of `Split` that applies.

    All that may cover a moment is laid over what came before it: a kind gets what it adds to the union.
    """
    start, end = np.empty(0, np.int64), np.empty(0, np.int64)
    spent, before = [], 0
    for more_start, more_end in _kinds(timeline, device):
        if len(more_start):
            start, end = union(np.append(start, more_start), np.append(end, more_end))
        so_far = int(covered(start, end, steps.start, steps.end).sum())
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


def _kinds(timeline: Timeline, device: int) -> list[tuple[Ints, Ints]]:
    """The spans of every kind, in order of priority."""
    work, host = timeline.work, timeline.host
    here = work.device == device
    talk = is_communication(timeline)
    device_rows = [
        here & (work.kind == WorkKind.KERNEL) & ~talk,
        here & (work.kind == WorkKind.MEMCPY),
        here & (work.kind == WorkKind.MEMSET),
        here & talk,
    ]
    found = [(work.start[rows], work.end[rows]) for rows in device_rows]
    operator = host.kind == HostKind.OPERATOR
    call = host.kind == HostKind.CALL
    marked = operator | (host.kind == HostKind.ANNOTATION)
    loading = _named(timeline, LOADING) & marked
    carried = _named(timeline, _HOST_COMMUNICATION) & marked
    found[3] = (np.append(found[3][0], host.start[carried]), np.append(found[3][1], host.end[carried]))
    plain = operator | (marked & _named(timeline, _OPTIMIZER))
    return found + [
        (host.start[rows], host.end[rows]) for rows in (call, loading, _outermost(timeline, plain))
    ]


def _named(timeline: Timeline, pattern: re.Pattern[str]) -> Bools:
    """For each row of `host` whether its name matches."""
    numbers = np.flatnonzero(timeline.names_where(pattern.match))
    if not len(numbers):
        return np.zeros(len(timeline.host), bool)
    found: Bools = np.isin(timeline.host.name, numbers)
    return found


def _outermost(timeline: Timeline, rows: Bools) -> Ints:
    """Those of these rows that no earlier one of their thread covers: as good for a union, and far fewer."""
    found = np.flatnonzero(rows)
    outer: Ints = found[~below(timeline, found, np.ones(len(found), bool))]
    return outer


def utilization(timeline: Timeline, steps: StepSpans, device: int) -> float:
    """The share (0 to 1) of the time from the first step's start to the last one's end with a kernel running.

    Communication kernels count, copies do not. -1 where the device ran no kernel.
    """
    work = timeline.work
    rows = (work.device == device) & (work.kind == WorkKind.KERNEL)
    low, high = _whole(steps)
    if not rows.any() or high <= low:
        return -1.0
    return int(covered(*union(work.start[rows], work.end[rows]), np.array([low]), np.array([high]))[0]) / (
        high - low
    )


def sm_efficiency(timeline: Timeline, steps: StepSpans, device: int) -> float:
    """The share (0 to 1) of the multiprocessors that have a block, over the same time as `utilization`.

    At each moment the blocks per multiprocessor of the kernels that run then are added up and cut at 1. -1
    where blocks per multiprocessor were not recorded.
    """
    work = timeline.work
    low, high = _whole(steps)
    rows = np.flatnonzero((work.device == device) & (work.kind == WorkKind.KERNEL) & (work.blocks_per_sm > 0))
    if not len(rows) or high <= low:
        return -1.0
    time = np.clip(np.concatenate([work.start[rows], work.end[rows]]), low, high)
    # Millionths as integers: sums of floats would leave remainders where nothing runs.
    blocks = np.rint(work.blocks_per_sm[rows] * _FULL).astype(np.int64)
    order = np.argsort(time, kind="stable")
    running = np.cumsum(np.concatenate([blocks, -blocks])[order])
    filled = np.minimum(running[:-1], _FULL) / _FULL * np.diff(time[order])
    return float(filled.sum()) / (high - low)


def occupancy(timeline: Timeline, steps: StepSpans, device: int) -> float:
    """The estimated achieved occupancy (percent): a mean over the kernels, by their time in the steps.

    -1 where it was not recorded.
    """
    work = timeline.work
    rows = np.flatnonzero((work.device == device) & (work.kind == WorkKind.KERNEL) & (work.occupancy >= 0))
    low, high = _whole(steps)
    length = np.maximum(np.minimum(work.end[rows], high) - np.maximum(work.start[rows], low), 0)
    total = int(length.sum())
    return float((work.occupancy[rows] * length).sum()) / total if total else -1.0


def _whole(steps: StepSpans) -> tuple[int, int]:
    """From the start of the first step to the end of the last."""
    return (int(steps.start[0]), int(steps.end[-1])) if len(steps.start) else (0, 0)
