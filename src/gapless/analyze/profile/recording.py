"""Find how a trace was recorded, and what that cost."""

from __future__ import annotations

from typing import Literal

import numpy as np

from gapless.analyze.profile.trace_steps import StepSpans, covered_time
from gapless.model.profile import Recording
from gapless.trace.timeline import HostKind, Ints, Timeline, distinct, union


def find_recording(timeline: Timeline, steps: StepSpans) -> Recording:
    """Return the profiler's options as far as the trace shows them, and its overhead in the steps (ns)."""
    host, facts = timeline.host, timeline.facts
    rows = np.flatnonzero(host.kind == HostKind.OVERHEAD)
    return Recording(
        stacks=_stacks(timeline),
        with_stack=facts.with_stack,
        with_memory=facts.with_memory,
        with_shapes=facts.with_shapes,
        overhead=_covered_time(timeline, steps, rows),
        overheads=_overhead_by_name(timeline, steps, rows),
        events_per_step=_events_per_step(timeline, steps),
        truncated=facts.truncated,
    )


def _stacks(timeline: Timeline) -> Literal["frames", "call-stack", ""]:
    if (timeline.host.kind == HostKind.FRAME).any():
        return "frames"
    return "call-stack" if any(timeline.stacks) else ""


def _covered_time(timeline: Timeline, steps: StepSpans, rows: Ints) -> int:
    """Return how much of the steps these rows cover together."""
    spans = union(timeline.host.start[rows], timeline.host.end[rows])
    return int(covered_time(*spans, steps.start, steps.end).sum())


def _overhead_by_name(timeline: Timeline, steps: StepSpans, rows: Ints) -> dict[str, int]:
    """Return the time in the steps of each kind of overhead, largest first; kinds without any left out."""
    times = {
        timeline.names[number]: _covered_time(timeline, steps, rows[timeline.host.name[rows] == number])
        for number in distinct(timeline.host.name[rows]).tolist()
    }
    return {name: time for name, time in sorted(times.items(), key=lambda item: -item[1]) if time}


def _events_per_step(timeline: Timeline, steps: StepSpans) -> int:
    """Return the number of events that start in a step, on average."""
    if not len(steps.start):
        return 0
    columns = (timeline.host.start, timeline.work.start, timeline.memory.time)
    return round(sum(int(np.count_nonzero(steps.at(times) >= 0)) for times in columns) / len(steps.start))
