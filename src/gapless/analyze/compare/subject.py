"""One side of a comparison: a profile, or the slowest of several ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gapless.analyze.collectives.ranks import group_runs, summarize_ranks
from gapless.model import Finding, Profile

_MIN_DELAY_SHARE = 0.01
"""Share of a step by which a rank must be later than others to be the slowest: less is clock noise."""


class ComparisonSide(NamedTuple):
    """One side: what the user named, its profile (of the slowest of `files` ranks) and its findings.

    `notes` are remarks for the user, without a full stop.
    """

    name: str
    profile: Profile
    findings: tuple[Finding, ...] = ()
    files: int = 1
    notes: tuple[str, ...] = ()


def subject(
    name: str,
    profiles: Sequence[Profile],
    findings: Callable[[Sequence[Profile]], tuple[Finding, ...]],
    notes: tuple[str, ...] = (),
) -> ComparisonSide:
    """Build a side from the user's `name` and its profiles, one or several ranks.

    `findings` is called with all profiles, the representative one first.
    """
    at = slowest(profiles)
    slowest_profile = profiles[at]
    rest = [profile for i, profile in enumerate(profiles) if i != at]
    if rest:
        label = f"rank {slowest_profile.rank}" if slowest_profile.rank >= 0 else slowest_profile.path
        notes += (f"{label}, the slowest of {len(profiles)} traces, represents them",)
        if len(group_runs(profiles)) > 1:
            notes += ("some of these traces may not be ranks of one run",)
    return ComparisonSide(name, slowest_profile, findings([slowest_profile, *rest]), len(profiles), notes)


def slowest(profiles: Sequence[Profile]) -> int:
    """Return the position of the rank that the others wait for, else of the longest mean step."""
    late = dict.fromkeys(range(len(profiles)), 0.0)
    if len(profiles) > 1:
        rows = {row.path: row.late for row in summarize_ranks(profiles)}
        delays = [rows.get(profile.path, -1.0) for profile in profiles]
        margin = _MIN_DELAY_SHARE * max(profile.steps.mean for profile in profiles)
        if max(delays) - min(delays) > margin and min(delays) >= 0:
            late = dict(enumerate(delays))
    return max(late, key=lambda i: (late[i], profiles[i].steps.mean, -i))
