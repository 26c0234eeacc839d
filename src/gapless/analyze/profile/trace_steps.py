"""Find the steps of a trace; measure within them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TypeVar

import numpy as np

from gapless.analyze.profile.marks import StepMarks, find_marks
from gapless.trace.timeline import Bools, Ints, Timeline, WorkKind, distinct, union

T = TypeVar("T")

_COMMUNICATION = re.compile(
    r"(?!triton_)"  # the compiler names its kernels after all operators around, collectives among them
    r".*?(?:\b(?:[nrhmx]|one|ms)?ccl(?:[A-Z_:]|\b)|\b(?:gloo|nvshmem|rocshmem|deep_ep|DeepEP)"
    r"|cross_device_reduce|[Aa]ll_?[Rr]educe|(?:one|two)_?[Ss]hot|[Aa]ll_?[Gg]ather|[Rr]educe_?[Ss]catter"
    r"|[Aa]ll_?[Tt]o_?[Aa]ll|all2all|multimem_|quick_?reduce)"
)


@dataclass(frozen=True)
class StepSpans:
    """The steps of one device: disjoint, in order, nanoseconds since the first event.

    `source` says what marks them, or ``span``; `notes` says what was left out, a sentence each.
    """

    source: str
    names: tuple[str, ...]
    start: Ints
    end: Ints
    notes: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """The length of all steps together."""
        return int((self.end - self.start).sum())

    def at(self, time: Ints) -> Ints:
        """Return the step that each time lies in, or -1."""
        if not len(self.start):
            return np.full(len(time), -1)
        step = np.searchsorted(self.start, time, side="right") - 1
        return np.where(time < self.end[np.maximum(step, 0)], step, -1)


def _cached_per_timeline(function: Callable[[Timeline], T]) -> Callable[[Timeline], T]:
    """Cache a function's result beside the columns of its timeline, as a cached property would."""
    key = f"_{function.__module__}.{function.__name__}"

    @wraps(function)
    def call_once(timeline: Timeline) -> T:
        if key not in timeline.__dict__:
            timeline.__dict__[key] = function(timeline)
        result: T = timeline.__dict__[key]
        return result

    return call_once


@_cached_per_timeline
def is_communication(timeline: Timeline) -> Bools:
    """Return for each row of `work` whether it is a kernel of collective or point-to-point communication.

    Decided by the kernel's name (NCCL of all ages, RCCL, oneCCL, NVSHMEM, the all-reduce kernels of inference
    engines), or because the profiler recorded a collective for it.
    """
    is_named = timeline.names_where(_COMMUNICATION.match)
    kernel = timeline.work.kind == WorkKind.KERNEL
    is_match: Bools = kernel & (is_named[timeline.work.name] | (timeline.work.group >= 0))
    return is_match


def main_device(timeline: Timeline) -> int:
    """Return the device that is busy longest (the lowest number on a tie), -1 without device work."""
    if not len(timeline.work):
        return -1
    devices = distinct(timeline.work.device)
    if len(devices) == 1:
        return int(devices[0])
    busy = [_length(*busy_spans(timeline, int(candidate))) for candidate in devices]
    return int(devices[int(np.argmax(busy))])


def busy_spans(timeline: Timeline, device: int) -> tuple[Ints, Ints]:
    """Return when the device computes or copies, without communication, as disjoint spans in order."""
    rows = (timeline.work.device == device) & ~is_communication(timeline)
    return union(timeline.work.start[rows], timeline.work.end[rows])


def covered_time(start: Ints, end: Ints, low: Ints, high: Ints) -> Ints:
    """Return how much of each window from `low` to `high` these disjoint, ordered spans cover."""
    before = np.append(0, np.cumsum(end - start))

    def until(time: Ints) -> Ints:
        at = np.searchsorted(start, time, side="right")
        inside = np.maximum(at - 1, 0)
        beyond = np.where(at > 0, np.maximum(end[inside] - time, 0), 0) if len(end) else 0
        return np.asarray(before[at] - beyond, np.int64)

    return until(high) - until(low)


def lies_within(timeline: Timeline, rows: Ints, cover: Bools) -> Bools:
    """Return which of these rows of `host` end within an earlier row of `cover` on their thread."""
    if not len(rows):
        return np.zeros(0, bool)
    span = int(timeline.host.end.max()) + 1
    end = timeline.host.end[rows] + timeline.host.thread[rows].astype(np.int64) * span
    reach = np.maximum.accumulate(np.where(cover, end, -1))
    return np.append(False, end[1:] <= reach[:-1])


def sum_by_group(groups: Ints, count: int, amount: Ints) -> Ints:
    """Sum `amount` exactly by group: `bincount` would return floats."""
    total = np.zeros(count, np.int64)
    np.add.at(total, groups, amount)
    return total


def find_steps(timeline: Timeline, device: int) -> StepSpans:
    """Find the steps by the best mark of the trace.

    In this order: ``ProfilerStep#`` annotations; ends of optimizer steps; annotations named like iterations;
    batches of a data loader; the whole trace as one step. Each step but the last kind lasts until the last
    operation it launched on `device` has ended, and the next begins no earlier.
    """
    launched = _launch_times(timeline, device)
    marks = find_marks(timeline, launched[0])
    if marks is None:
        return _whole_trace(timeline, device, launched)
    return _extend_to_device(timeline, device, launched, marks)


def _launch_times(timeline: Timeline, device: int) -> tuple[Ints, Ints]:
    """Return the sorted launch times of the device's linked operations, and their rows in `work`."""
    rows = np.flatnonzero((timeline.work.device == device) & (timeline.launchers >= 0))
    time = timeline.host.start[timeline.launchers[rows]]
    order = np.argsort(time, kind="stable")
    return time[order], rows[order]


def _extend_to_device(
    timeline: Timeline, device: int, launched: tuple[Ints, Ints], marks: StepMarks
) -> StepSpans:
    """Extend steps to the end of their device work."""
    work = timeline.work
    first = np.searchsorted(launched[0], marks.start)
    last = np.searchsorted(launched[0], marks.end)
    counts = last - first
    finish = work.end[launched[1]]
    earlier = _end_of_earlier_work(timeline, device, launched, first, last)
    start, end = marks.start.copy(), marks.end.copy()
    for step in range(len(start)):  # a trace has few steps
        start[step] = max(start[step], earlier)
        reach = int(finish[first[step] : last[step]].max()) if counts[step] else 0
        end[step] = earlier = max(int(start[step]), int(end[step]), reach)
    linked = np.count_nonzero(timeline.launchers[work.device == device] >= 0)
    keep = _count_complete(counts) if linked > np.count_nonzero(work.device == device) / 2 else len(counts)
    notes: tuple[str, ...] = ()
    if keep < len(counts):
        gone = ", ".join(marks.names[keep:])
        notes = (f"{gone} left out: it has so little GPU work that the recording seems to end before it",)
    return StepSpans(marks.source, marks.names[:keep], start[:keep], end[:keep], notes)


def _end_of_earlier_work(
    timeline: Timeline, device: int, launched: tuple[Ints, Ints], first: Ints, last: Ints
) -> int:
    """Return when the work of unrecorded earlier steps ended, which runs before the first step's own."""
    if not len(first) or last[0] == first[0]:
        return 0
    work = timeline.work
    inside = np.zeros(len(work), bool)
    for low, high in zip(first.tolist(), last.tolist(), strict=True):
        inside[launched[1][low:high]] = True
    begin = int(work.start[launched[1][first[0] : last[0]]].min())
    foreign = (work.device == device) & ~inside & (work.end < begin)
    return int(work.end[foreign].max()) if foreign.any() else 0


def _count_complete(counts: Ints) -> int:
    """Count the steps without those at the end whose device work was not fully recorded."""
    having = np.flatnonzero(counts)
    if len(counts) < 2 or not len(having):
        return len(counts)
    last = int(having[-1])
    return last if last > 0 and counts[last] < 0.8 * counts[last - 1] else last + 1


def _whole_trace(timeline: Timeline, device: int, launched: tuple[Ints, Ints]) -> StepSpans:
    """Return the whole trace as one step.

    If most of it passes before the device is first used, the step begins with the first launch: loading and
    lazy set-up would dominate it otherwise.
    """
    start, end = timeline.span
    rows = timeline.work.device == device
    if rows.any():
        first = int(timeline.work.start[rows].min())
        first = min([first, *launched[0][:1].tolist()])
        if first - start > (end - start) / 2:
            start = first
    return StepSpans("span", ("1",), np.array([start], np.int64), np.array([end], np.int64))


def _length(start: Ints, end: Ints) -> int:
    return int((end - start).sum())
