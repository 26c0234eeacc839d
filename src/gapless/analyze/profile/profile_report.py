"""Profiles to a `Report`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gapless.analyze.collectives.ranks import (
    compare_ranks,
    group_ranks,
    missing_rank_notes,
    position_of_straggler,
    summarize_ranks,
)
from gapless.analyze.profile.profile_findings import findings
from gapless.analyze.profile.source_lines import Read, with_source_lines
from gapless.analyze.tables.profile_tables import tables
from gapless.analyze.verdicts.profile_verdict import verdict
from gapless.model import Environment, Profile, RankSummary, Report, StepSummary, Verdict


def report(profiles: Sequence[Profile], notes: Sequence[str] = (), read: Read | None = None) -> Report:
    """What the profiles of one run (one for each rank, at least one) say together.

    `read` gives the text of the user's source files where they lie at hand: lines are told exactly with it.

    Where there are several ranks, the one that the others wait for is looked at closely, or else the slowest.
    """
    rows = summarize_ranks(profiles) if len(profiles) > 1 else ()
    at = _focus(profiles, rows)
    chosen = profiles[at]
    others = [*profiles[:at], *profiles[at + 1 :]]
    said = missing_rank_notes(profiles) if rows else ()
    one = with_source_lines(chosen, read) if read else chosen
    waits = sum(cost.calls for cost in one.costs if cost.cause == "wait")
    count = one.steps.count
    found = Report(
        verdict=Verdict(sentence=""),
        kind="profile",
        script=(one.path,),
        environment=Environment(device=one.gpu, rank=max(one.rank, 0), world_size=max(one.world_size, 1)),
        steps=StepSummary(
            seen=count,
            steady=count,
            waits_per_step=waits / count if count else 0.0,
            source=one.steps.source,
        ),
        findings=findings([one, *others]),
        notes=tuple(dict.fromkeys([*notes, *said, *one.notes])),
        profile=one,
        ranks=rows,
        path=one.path,
    )
    shared = compare_ranks(profiles).shared if rows else ()
    return msgspec.structs.replace(found, verdict=verdict(found, one), tables=tables(found, one, shared))


def reports(profiles: Sequence[Profile], notes: Sequence[str] = (), read: Read | None = None) -> list[Report]:
    """A report for each run among `profiles`, with `notes` in the first, and how ranks were told there."""
    grouping = group_ranks(profiles)
    first = (*notes, *grouping.notes)
    return [report(run, () if number else first, read) for number, run in enumerate(grouping.runs)]


def _focus(profiles: Sequence[Profile], rows: Sequence[RankSummary]) -> int:
    """The position of the profile to look at: of the rank the others wait for, else of the longest steps."""
    if not rows:
        return 0
    slow = position_of_straggler(profiles)
    return slow if slow >= 0 else max(range(len(profiles)), key=lambda at: profiles[at].steps.mean)
