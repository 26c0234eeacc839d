"""How a trace was taken, and what that cost."""

from __future__ import annotations

from typing import Literal

import numpy as np

from gapless.analyze.profile.trace_steps import StepSpans, covered
from gapless.model.profile import Recording
from gapless.trace.timeline import HostKind, Ints, Timeline, distinct, union


def recording(timeline: Timeline, steps: StepSpans) -> Recording:
    """The profiler's options as far as the trace shows them, and its own time in the steps (nanoseconds)."""
    host, facts = timeline.host, timeline.facts
    rows = np.flatnonzero(host.kind == HostKind.OVERHEAD)
    return Recording(
        stacks=_stacks(timeline),
        with_stack=facts.with_stack,
        with_memory=facts.with_memory,
        with_shapes=facts.with_shapes,
        overhead=_time_in(timeline, steps, rows),
        overheads=_by_name(timeline, steps, rows),
        events_per_step=_events(timeline, steps),
        truncated=facts.truncated,
    )


def _stacks(timeline: Timeline) -> Literal["frames", "call-stack", ""]:
    if (timeline.host.kind == HostKind.FRAME).any():
        return "frames"
    return "call-stack" if any(timeline.stacks) else ""


def _time_in(timeline: Timeline, steps: StepSpans, rows: Ints) -> int:
    """How much of the steps these rows cover together."""
    spans = union(timeline.host.start[rows], timeline.host.end[rows])
    return int(covered(*spans, steps.start, steps.end).sum())


def _by_name(timeline: Timeline, steps: StepSpans, rows: Ints) -> dict[str, int]:
    """The same for each kind of overhead, the largest first; kinds outside the steps left out."""
    found = {
        timeline.names[number]: _time_in(timeline, steps, rows[timeline.host.name[rows] == number])
        for number in distinct(timeline.host.name[rows]).tolist()
    }
    return {name: time for name, time in sorted(found.items(), key=lambda item: -item[1]) if time}


def _events(timeline: Timeline, steps: StepSpans) -> int:
    """Events per step, those that start in one."""
    if not len(steps.start):
        return 0
    columns = (timeline.host.start, timeline.work.start, timeline.memory.time)
    return round(sum(int(np.count_nonzero(steps.at(times) >= 0)) for times in columns) / len(steps.start))
