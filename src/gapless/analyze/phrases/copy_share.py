"""How much of the steps copies between host and device take by themselves."""

from __future__ import annotations

from gapless.model import Profile

MIN_CAUSE_SHARE = 0.1
"""A share of the steps from which copies are a cause of their own, where idleness has no larger one."""


def copies_dominate(profile: Profile) -> bool:
    """Whether copies take more of the steps than idleness for any one reason."""
    causes = profile.idle_by_cause()
    alone = copies_alone(profile)
    return alone >= MIN_CAUSE_SHARE * profile.steps.total and alone >= (causes[0][1] if causes else 0)


def copies_alone(profile: Profile) -> int:
    return sum(kind.alone for kind in profile.copies)
