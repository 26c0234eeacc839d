"""Find what has become worse from one run to the other."""

from __future__ import annotations

from gapless.model.comparison import Comparison, FindingChange


def find_regressions(comparison: Comparison, max_percent: float) -> tuple[FindingChange, ...]:
    """Return the findings that are new, and in sessions those with more syncs per step.

    With `max_percent` above 0, findings of sessions count only if they add more than that percentage of a
    step's syncs. Profiles report findings only above some size, so a new one says little about what it adds.
    """
    return tuple(
        row
        for row in comparison.findings
        if not row.unseen
        and (row.state == "new" or (comparison.of == "sessions" and has_increased(row)))
        and (not max_percent or _added_waits(row) > max_percent / 100 * comparison.length.before)
    )


def has_grown(comparison: Comparison, max_percent: float) -> bool:
    """Whether a step (or the whole run) takes over `max_percent` percent more time or syncs.

    A change within the spread of the steps does not count, nor a changed mean without any increased finding:
    a sync in every third step occurs 3 times in 10 steps and may occur 4 times in 11.
    """
    length = comparison.length
    if length.change <= 0 or comparison.within_spread:
        return False
    if (
        comparison.of == "sessions"
        and comparison.findings
        and not any(map(has_increased, comparison.findings))
    ):
        return False
    return length.percent is None or length.percent > max_percent


def has_increased(row: FindingChange) -> bool:
    """Whether a finding of sessions syncs more often per step than before."""
    now = row.after.frequency if row.after else None
    was = row.before.frequency if row.before else None
    if now is None or was is None:
        return now is not None
    if (was.when, was.waits, was.every) == (now.when, now.waits, now.every):
        return False
    return now.per_step > was.per_step


def _added_waits(row: FindingChange) -> float:
    """Syncs that `row` adds to a step; 0 for profiles."""
    if row.finding.loss:
        return 0.0
    now, was = (finding.frequency.per_step if finding else 0.0 for finding in (row.after, row.before))
    return now - was
