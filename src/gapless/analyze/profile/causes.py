"""Idleness by cause."""

from __future__ import annotations

from gapless.model import Cause, Profile


def by_cause(profile: Profile) -> list[tuple[Cause, int]]:
    """Idle nanoseconds of each cause, most first."""
    sums: dict[Cause, int] = {}
    for cost in profile.costs:
        sums[cost.cause] = sums.get(cost.cause, 0) + cost.idle
    return sorted(((cause, idle) for cause, idle in sums.items() if idle), key=lambda one: -one[1])
