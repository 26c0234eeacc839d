"""Profiles to a `Report`."""

from __future__ import annotations

from collections.abc import Sequence

from gapless.analyze.profile.findings import findings
from gapless.analyze.profile.headline import headline
from gapless.analyze.profile.narrow import Read, narrow
from gapless.analyze.ranks import summaries
from gapless.model import Environment, Profile, RankSummary, Report, StepSummary

LATE = 0.02
"""A rank that reaches collectives later than its peers by this share of a step is the one they wait for."""


def report(profiles: Sequence[Profile], notes: Sequence[str] = (), read: Read | None = None) -> Report:
    """What the profiles of one run (one for each rank, at least one) say together.

    `read` gives the text of the user's source files where they lie at hand: lines are told exactly with it.

    Where there are several ranks, the one that the others wait for is looked at closely, or else the slowest.
    """
    rows = summaries(profiles) if len(profiles) > 1 else ()
    chosen = _focus(profiles, rows)
    others = [other for other in profiles if other is not chosen]
    one = narrow(chosen, read) if read else chosen
    sentence = headline(one)
    if rows:
        sentence = f"Rank {one.rank} of {len(profiles)}: {sentence}"
    waits = sum(cost.calls for cost in one.costs if cost.cause == "wait")
    count = one.steps.count
    return Report(
        sentence=sentence,
        script=(one.path,),
        environment=Environment(device=one.gpu, rank=max(one.rank, 0), world_size=max(one.world_size, 1)),
        steps=StepSummary(
            seen=count,
            steady=count,
            waits_per_step=waits / count if count else 0.0,
            source=one.steps.source,
        ),
        findings=findings([one, *others]),
        notes=tuple(dict.fromkeys([*notes, *one.notes])),
        profile=one,
        ranks=rows,
    )


def _focus(profiles: Sequence[Profile], rows: Sequence[RankSummary]) -> Profile:
    """The profile to look at: that of the rank which comes latest, else of the one with the longest steps."""
    if not rows:
        return profiles[0]
    latest = max(rows, key=lambda row: row.late)
    chosen = latest if latest.late >= LATE * latest.step else max(rows, key=lambda row: row.step)
    for profile in profiles:
        if profile.path == chosen.path and profile.rank in (chosen.rank, -1):
            return profile
    return profiles[0]
