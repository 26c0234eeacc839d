"""Measure how much of the steps is spent on nothing but copies between host and device."""

from __future__ import annotations

from gapless.model import Profile

MIN_CAUSE_SHARE = 0.1
"""Share of the steps from which copies count as a cause, if no idleness is a larger one."""


def copies_dominate(profile: Profile) -> bool:
    """Whether copies alone take more of the steps than idleness of any single cause."""
    causes = profile.idle_by_cause()
    alone = copy_only_time(profile)
    return alone >= MIN_CAUSE_SHARE * profile.steps.total and alone >= (causes[0][1] if causes else 0)


def copy_only_time(profile: Profile) -> int:
    """Return nanoseconds in which the GPU does nothing but copy."""
    return sum(kind.alone for kind in profile.copies)
