"""The steps of a programme: which segments make one, and which are worth imagining."""

from __future__ import annotations

from gapless.analyze.run.steps import Steps
from gapless.model.programme import Entry, Programme, Segment, Shape
from gapless.replay.fidelity import LEAST_WORK

FEWEST = 4
"""Steps that are imagined at least; fewer recorded ones take turns."""
MOST_STEPS = 60
MOST_ITEMS = 20_000
"""Items of all imagined steps together, as far as `FEWEST` allows."""

Step = tuple[Entry, ...]
Arrived = tuple[tuple[str, Shape], ...]
"""Types and shapes of tensors that came from the host."""


def recorded(programme: Programme, steps: Steps) -> list[Step]:
    """The steady steps that were recorded whole, in order; without those in which a model was evaluated, or
    that hold a rollout or the like, if there are others."""
    return [
        tuple(programme.entries[position] for one in segments for position in programme.bodies[one.body])
        for segments in _whole(programme, steps)
    ]


def arrivals(programme: Programme, steps: Steps) -> list[Arrived]:
    """What came from the host in each of these steps."""
    return [tuple(one for part in segments for one in part.arrived) for segments in _whole(programme, steps)]


def left_out(programme: Programme, steps: Steps) -> int:
    """How many steady steps since the first kept segment were too long to be recorded whole."""
    kept = {segment.tick for segment in programme.segments}
    if not kept:
        return 0
    ticks = (
        range(steps.ends[number - 1] + 1 if number else 0, steps.ends[number] + 1) for number in steps.steady
    )
    return sum(one[0] >= min(kept) and not kept.issuperset(one) for one in ticks)


def _whole(programme: Programme, steps: Steps) -> list[list[Segment]]:
    """The segments of each of these steps."""
    segments = {segment.tick: segment for segment in programme.segments}
    plain, all_of_them = [], []
    for number in steps.steady:
        first = steps.ends[number - 1] + 1 if number else 0
        ticks = range(first, steps.ends[number] + 1)
        if not all(tick in segments for tick in ticks):
            continue
        step = [segments[tick] for tick in ticks]
        all_of_them.append(step)
        if number not in steps.mixed and not any(one.evaluates for one in step):
            plain.append(step)
    return plain or all_of_them


def chosen(found: list[Step]) -> list[Step]:
    """The steps to imagine, in order: the last ones, as many as fit; in turn where they are few or short."""
    kept: list[Step] = []
    size = 0
    for step in reversed(found):
        size += len(step)
        if kept and size > MOST_ITEMS:
            break
        kept.insert(0, step)
    launching = sum(entry.kind == "operator" for step in kept for entry in step)
    count = max(FEWEST, len(kept), -(-LEAST_WORK * len(kept) // max(launching, 1)))
    return [kept[number % len(kept)] for number in range(min(count, MOST_STEPS))]
