"""One side of a comparison: a profile, or the slowest of several ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gapless.analyze.collectives.ranks import runs, summaries
from gapless.model import Finding, Profile

_MARGIN = 0.01
"""Part of a step by which ranks must differ in their arrival at collectives, for one to be the last."""


class Subject(NamedTuple):
    """One side: what the user named, its profile (of the slowest of `files` ranks) and its findings.

    `notes` say what is to be known of it, without a full stop.
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
) -> Subject:
    """The side that the user called `name`, of one profile or more, those of ranks.

    `findings` finds in all of them, the one looked at closely first. `notes` are those of the side.
    """
    at = slowest(profiles)
    one = profiles[at]
    others = [profile for i, profile in enumerate(profiles) if i != at]
    if others:
        stands = f"rank {one.rank}" if one.rank >= 0 else one.path
        notes += (f"{stands}, the slowest of {len(profiles)} traces, represents them",)
        if len(runs(profiles)) > 1:
            notes += ("some of these traces may not be ranks of one run",)
    return Subject(name, one, findings([one, *others]), len(profiles), notes)


def slowest(profiles: Sequence[Profile]) -> int:
    """The position of the rank that the others wait for; where none can be told, of the longest steps."""
    late = dict.fromkeys(range(len(profiles)), 0.0)
    if len(profiles) > 1:
        rows = {row.path: row.late for row in summaries(profiles)}
        delays = [rows.get(profile.path, -1.0) for profile in profiles]
        margin = _MARGIN * max(profile.steps.mean for profile in profiles)
        if max(delays) - min(delays) > margin and min(delays) >= 0:
            late = dict(enumerate(delays))
    return max(late, key=lambda i: (late[i], profiles[i].steps.mean, -i))
