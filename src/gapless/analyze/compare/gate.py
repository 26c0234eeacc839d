"""What has become worse from one run to the other: what a gate stops."""

from __future__ import annotations

from gapless.model.comparison import Comparison, FindingChange


def worse(comparison: Comparison, bound: float) -> tuple[FindingChange, ...]:
    """The findings that are new, wherever they are, and lines of sessions that wait more often in the steps.

    Where `bound` is not 0, only those of sessions count that add over `bound` percent of a step's waits:
    profiles tell of a finding from some size on, so that a new one says little of what it adds.
    """
    return tuple(
        row
        for row in comparison.findings
        if not row.unseen
        and (row.state == "new" or (comparison.of == "sessions" and increased(row)))
        and (not bound or _adds(row) > bound / 100 * comparison.length.before)
    )


def grown(comparison: Comparison, bound: float) -> bool:
    """Whether the step (or the run) takes over `bound` percent more: time, or waits.

    A change within the spread of the steps is none, nor is one of the mean alone that no finding has: every
    third of ten steps is three times, and of eleven it may be four.
    """
    length = comparison.length
    if length.change <= 0 or comparison.within_spread:
        return False
    if comparison.of == "sessions" and comparison.findings and not any(map(increased, comparison.findings)):
        return False
    return length.percent is None or length.percent > bound


def increased(row: FindingChange) -> bool:
    """Whether a finding of sessions waits more often than before, in the steps or by coming into them."""
    now = row.after.frequency if row.after else None
    was = row.before.frequency if row.before else None
    if now is None or was is None:
        return now is not None
    if (was.when, was.waits, was.every) == (now.when, now.waits, now.every):
        return False
    return now.per_step > was.per_step


def _adds(row: FindingChange) -> float:
    """Waits that `row` adds to a step; 0 in profiles."""
    if row.finding.loss:
        return 0.0
    now, was = (one.frequency.per_step if one else 0.0 for one in (row.after, row.before))
    return now - was
