"""Determine how often a group of waits happens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from gapless.analyze.run.group import Group, RunPart
from gapless.analyze.run.phases import EVALUATION
from gapless.analyze.run.steps import RunSteps
from gapless.model import Frequency, Recurrence, When

_OUTSIDE: dict[RunPart, When] = {"before": "set-up", "after": "after"}


def frequency(group: Group, steps: RunSteps) -> Frequency:
    """Return when and how often the waits of `group` happen."""
    total = group.total
    whole = float(total)
    if group.phase is not None:
        return _phase_frequency(group.phase, total)
    if group.part != "steps":
        return Frequency(when=_OUTSIDE[group.part], waits=whole, total=total)
    if not steps.seen:
        return Frequency(when="no-steps", waits=whole, total=total)
    counts = [group.steps[step] for step in steps.steady_with(group.steps)]
    hit = [count for count in counts if count]
    if not hit:
        return Frequency(when="first-step", waits=whole, total=total)
    per_step = sum(counts) / len(counts)
    if len(hit) == len(counts) and _twice_in_a_row(group, steps):
        return Frequency(when="every-step", waits=per_step, per_step=per_step, every=1, total=total)
    apart = {
        _interval_of([step - part.start for step in part if group.steps[step]], len(part))
        for part in steps.parts
        if any(group.steps[step] for step in part)
    }
    every = apart.pop() if len(apart) == 1 else 0
    return Frequency(
        when="some-steps", waits=sum(hit) / len(hit), per_step=per_step, every=every, total=total
    )


def _phase_frequency(phase: Recurrence, total: int) -> Frequency:
    """Return the frequency of waits in a phase, per occurrence."""
    return Frequency(
        when="evaluation" if phase.name == EVALUATION else "phase",
        waits=total / max(phase.times, 1),
        total=total,
        phase=phase.name,
        times=phase.times,
        apart=phase.every,
    )


def _twice_in_a_row(group: Group, steps: RunSteps) -> bool:
    """Whether a wait in all steady steps is known to happen in every step.

    A single steady step may be the tenth of every ten; the warm-up step before it, or the code after the last
    optimizer step, tells.
    """
    steady = steps.steady
    return len(steady) > 1 or group.steps[steady[0] - 1] > 0 or group.trailing > 0


def _interval_of(hit: Sequence[int], step_count: int) -> int:
    """Return N if `hit` are every N-th of `step_count` steps; 0 if they are not, or too few to tell."""
    if len(hit) < 2:
        return 0
    distances = {later - earlier for earlier, later in pairwise(hit)}
    interval = distances.pop()
    # A missing wait at either end breaks the rhythm as much as one in between. What follows the optimizer's
    # step in an iteration falls into the next step, hence no `>=`.
    if distances or interval < 2 or hit[0] > interval or hit[-1] + interval < step_count:
        return 0
    return interval
