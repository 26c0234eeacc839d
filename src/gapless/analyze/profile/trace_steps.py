"""The steps of a trace, and what both they and every number over them are made of."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TypeVar

import numpy as np

from gapless.analyze.profile.marks import Marks, find_marks
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

    `source` says what marks them, or ``span``; `notes` what was left out, a sentence each.
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
        """The step that each moment lies in, or -1."""
        if not len(self.start):
            return np.full(len(time), -1)
        found = np.searchsorted(self.start, time, side="right") - 1
        return np.where(time < self.end[np.maximum(found, 0)], found, -1)


def _once(function: Callable[[Timeline], T]) -> Callable[[Timeline], T]:
    """Computed once per timeline and kept beside its columns, as a cached property would be."""
    key = f"_{function.__module__}.{function.__name__}"

    @wraps(function)
    def kept(timeline: Timeline) -> T:
        if key not in timeline.__dict__:
            timeline.__dict__[key] = function(timeline)
        found: T = timeline.__dict__[key]
        return found

    return kept


@_once
def is_communication(timeline: Timeline) -> Bools:
    """For each row of `work` whether it is a kernel of a collective or of point-to-point communication.

    By the kernel's name (NCCL of all ages, RCCL, oneCCL, NVSHMEM, the all-reduce kernels that inference
    engines bring), or because the profiler recorded a collective for it.
    """
    named = timeline.names_where(_COMMUNICATION.match)
    kernel = timeline.work.kind == WorkKind.KERNEL
    found: Bools = kernel & (named[timeline.work.name] | (timeline.work.group >= 0))
    return found


def main_device(timeline: Timeline) -> int:
    """The device that is busy longest (the lowest number of equals), -1 without device work."""
    if not len(timeline.work):
        return -1
    devices = distinct(timeline.work.device)
    if len(devices) == 1:
        return int(devices[0])
    busy = [_length(*compute_busy(timeline, int(one))) for one in devices]
    return int(devices[int(np.argmax(busy))])


def compute_busy(timeline: Timeline, device: int) -> tuple[Ints, Ints]:
    """When the device computes or copies, communication left out: disjoint spans in order."""
    rows = (timeline.work.device == device) & ~is_communication(timeline)
    return union(timeline.work.start[rows], timeline.work.end[rows])


def covered(start: Ints, end: Ints, low: Ints, high: Ints) -> Ints:
    """How much of each window from `low` to `high` these disjoint, ordered spans cover."""
    before = np.append(0, np.cumsum(end - start))

    def until(time: Ints) -> Ints:
        at = np.searchsorted(start, time, side="right")
        inside = np.maximum(at - 1, 0)
        beyond = np.where(at > 0, np.maximum(end[inside] - time, 0), 0) if len(end) else 0
        return np.asarray(before[at] - beyond, np.int64)

    return until(high) - until(low)


def below(timeline: Timeline, rows: Ints, cover: Bools) -> Bools:
    """Which of these rows of `host` end within an earlier one of `cover` on their thread."""
    if not len(rows):
        return np.zeros(0, bool)
    span = int(timeline.host.end.max()) + 1
    end = timeline.host.end[rows] + timeline.host.thread[rows].astype(np.int64) * span
    reach = np.maximum.accumulate(np.where(cover, end, -1))
    return np.append(False, end[1:] <= reach[:-1])


def sums(groups: Ints, count: int, amount: Ints) -> Ints:
    """What each of `count` groups has in all, exactly: sums of `bincount` would be floats."""
    total = np.zeros(count, np.int64)
    np.add.at(total, groups, amount)
    return total


def find_steps(timeline: Timeline, device: int) -> StepSpans:
    """The steps, by the best mark the trace has.

    ``ProfilerStep#`` annotations; else the ends of optimizer steps; else annotations whose names say that
    they are iterations; else the batches of a data loader; else the whole trace as one. Each step but that
    one lasts until the last operation it launched on `device` has ended, and the next begins no earlier.
    """
    launched = _launched(timeline, device)
    found = find_marks(timeline, launched[0])
    if found is None:
        return _span(timeline, device, launched)
    return _stretched(timeline, device, launched, found)


def _launched(timeline: Timeline, device: int) -> tuple[Ints, Ints]:
    """When each linked operation of the device was launched, in order, and its row in `work`."""
    rows = np.flatnonzero((timeline.work.device == device) & (timeline.launchers >= 0))
    time = timeline.host.start[timeline.launchers[rows]]
    order = np.argsort(time, kind="stable")
    return time[order], rows[order]


def _stretched(timeline: Timeline, device: int, launched: tuple[Ints, Ints], marks: Marks) -> StepSpans:
    """Steps as the device sees them."""
    work = timeline.work
    first = np.searchsorted(launched[0], marks.start)
    last = np.searchsorted(launched[0], marks.end)
    counts = last - first
    finish = work.end[launched[1]]
    earlier = _still_running(timeline, device, launched, first, last)
    start, end = marks.start.copy(), marks.end.copy()
    for step in range(len(start)):  # there are few
        start[step] = max(start[step], earlier)
        reach = int(finish[first[step] : last[step]].max()) if counts[step] else 0
        end[step] = earlier = max(int(start[step]), int(end[step]), reach)
    linked = np.count_nonzero(timeline.launchers[work.device == device] >= 0)
    keep = _whole(counts) if linked > np.count_nonzero(work.device == device) / 2 else len(counts)
    notes: tuple[str, ...] = ()
    if keep < len(counts):
        gone = ", ".join(marks.names[keep:])
        notes = (f"{gone} left out: it has so little GPU work that the recording seems to end before it",)
    return StepSpans(marks.source, marks.names[:keep], start[:keep], end[:keep], notes)


def _still_running(
    timeline: Timeline, device: int, launched: tuple[Ints, Ints], first: Ints, last: Ints
) -> int:
    """When the work of the steps before the recorded ones ended: it came before the first step's own."""
    if not len(first) or last[0] == first[0]:
        return 0
    work = timeline.work
    inside = np.zeros(len(work), bool)
    for low, high in zip(first.tolist(), last.tolist(), strict=True):
        inside[launched[1][low:high]] = True
    begin = int(work.start[launched[1][first[0] : last[0]]].min())
    foreign = (work.device == device) & ~inside & (work.end < begin)
    return int(work.end[foreign].max()) if foreign.any() else 0


def _whole(counts: Ints) -> int:
    """How many steps remain without those at the end whose device work was not captured (any more)."""
    having = np.flatnonzero(counts)
    if len(counts) < 2 or not len(having):
        return len(counts)
    last = int(having[-1])
    return last if last > 0 and counts[last] < 0.8 * counts[last - 1] else last + 1


def _span(timeline: Timeline, device: int, launched: tuple[Ints, Ints]) -> StepSpans:
    """The whole trace as one step.

    Where most of it passes before the device is first used, loading and lazy set-up would drown everything
    else: it then begins with the first launch.
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
