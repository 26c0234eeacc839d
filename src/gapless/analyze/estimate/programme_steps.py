"""Extract the steps of a programme and choose those to run."""

from __future__ import annotations

from gapless.analyze.run.steps import RunSteps
from gapless.model.programme import Entry, Programme, Segment, Shape
from gapless.replay.fidelity import MIN_OPERATIONS

MIN_STEPS = 4
"""Steps to run at least; fewer recorded ones are repeated in turn."""
MAX_STEPS = 60
"""Steps to run at most, to bound the time of an estimate."""
MAX_ITEMS = 20_000
"""Entries of all steps run together, for the same reason, as far as `MIN_STEPS` allows."""
ENOUGH_ITEMS = 5_000
"""Entries after which steps that only repeat earlier ones are left out: they would take as long as those."""

Step = tuple[Entry, ...]
ArrivedTensors = tuple[tuple[str, Shape], ...]
"""Types and shapes of tensors that came from the host."""


def recorded_steps(programme: Programme, steps: RunSteps) -> list[Step]:
    """Return the steady steps that were recorded completely, in order; without those in which a model was
    evaluated, or that hold a rollout or the like, if there are others."""
    return [
        tuple(
            programme.entries[position] for segment in segments for position in programme.bodies[segment.body]
        )
        for segments in _complete_steps(programme, steps)
    ]


def arrived_tensors(programme: Programme, steps: RunSteps) -> list[ArrivedTensors]:
    """Return the tensors that came from the host in each of these steps."""
    return [
        tuple(tensor for part in segments for tensor in part.arrived)
        for segments in _complete_steps(programme, steps)
    ]


def count_left_out(programme: Programme, steps: RunSteps) -> int:
    """Count the steady steps since the first kept segment that were too long to be recorded completely."""
    kept = {segment.tick for segment in programme.segments}
    if not kept:
        return 0
    ticks = (
        range(steps.ends[number - 1] + 1 if number else 0, steps.ends[number] + 1) for number in steps.steady
    )
    return sum(ticks_[0] >= min(kept) and not kept.issuperset(ticks_) for ticks_ in ticks)


def _complete_steps(programme: Programme, steps: RunSteps) -> list[list[Segment]]:
    """Return the segments of each completely recorded step."""
    segments = {segment.tick: segment for segment in programme.segments}
    plain, every_step = [], []
    for number in steps.steady:
        first = steps.ends[number - 1] + 1 if number else 0
        ticks = range(first, steps.ends[number] + 1)
        if not all(tick in segments for tick in ticks):
            continue
        step = [segments[tick] for tick in ticks]
        every_step.append(step)
        if number not in steps.mixed and not any(segment.evaluates for segment in step):
            plain.append(step)
    return plain or every_step


def choose_steps(steps: list[Step]) -> list[Step]:
    """Choose the steps to run, in order: the last ones that fit, repeated if they are few or short."""
    kept: list[Step] = []
    size = 0
    for step in reversed(steps):
        size += len(step)
        if kept and size > MAX_ITEMS:
            break
        kept.insert(0, step)
    period = next(n for n in range(1, len(kept) + 1) if kept[n:] == kept[:-n])
    repeats = max(-(-ENOUGH_ITEMS // max(sum(map(len, kept[-period:])), 1)), 1)
    kept = kept[-period * repeats :]
    launching = sum(entry.kind == "operator" for step in kept for entry in step)
    least = min(MIN_STEPS, max(period * repeats, 2))
    count = max(least, len(kept), -(-MIN_OPERATIONS * len(kept) // max(launching, 1)))
    return [kept[number % len(kept)] for number in range(min(count, MAX_STEPS))]
