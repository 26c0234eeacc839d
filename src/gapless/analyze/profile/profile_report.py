"""Turn profiles into a `Report`."""

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
from gapless.analyze.profile.profile_findings import find_in_profiles
from gapless.analyze.profile.source_lines import ReadSource, with_source_lines
from gapless.analyze.tables.profile_tables import tables
from gapless.analyze.verdicts.profile_verdict import verdict
from gapless.model import Environment, Profile, RankSummary, Report, StepSummary, Verdict


def report_run(
    profiles: Sequence[Profile], notes: Sequence[str] = (), read: ReadSource | None = None
) -> Report:
    """Report on the profiles of one run, one per rank, at least one.

    `read` returns the text of the user's source files if they are available, for exact lines.

    Of several ranks, the one that the others wait for is examined in full, or else the slowest.
    """
    rows = summarize_ranks(profiles) if len(profiles) > 1 else ()
    at = _main_position(profiles, rows)
    chosen = profiles[at]
    rest = [*profiles[:at], *profiles[at + 1 :]]
    rank_notes = missing_rank_notes(profiles) if rows else ()
    main = with_source_lines(chosen, read) if read else chosen
    waits = sum(cost.calls for cost in main.costs if cost.cause == "wait")
    count = main.steps.count
    draft = Report(
        verdict=Verdict(sentence=""),
        kind="profile",
        script=(main.path,),
        environment=Environment(device=main.gpu, rank=max(main.rank, 0), world_size=max(main.world_size, 1)),
        steps=StepSummary(
            seen=count,
            steady=count,
            waits_per_step=waits / count if count else 0.0,
            source=main.steps.source,
        ),
        findings=find_in_profiles([main, *rest]),
        notes=tuple(dict.fromkeys([*notes, *rank_notes, *main.notes])),
        profile=main,
        ranks=rows,
        path=main.path,
    )
    shared = compare_ranks(profiles).shared if rows else ()
    return msgspec.structs.replace(draft, verdict=verdict(draft, main), tables=tables(draft, main, shared))


def report_runs(
    profiles: Sequence[Profile], notes: Sequence[str] = (), read: ReadSource | None = None
) -> list[Report]:
    """Report on each run among `profiles`; the first report gets `notes` and how ranks were grouped."""
    grouping = group_ranks(profiles)
    first = (*notes, *grouping.notes)
    return [report_run(run, () if number else first, read) for number, run in enumerate(grouping.runs)]


def _main_position(profiles: Sequence[Profile], rows: Sequence[RankSummary]) -> int:
    """Return the position of the profile to examine: the rank others wait for, else the longest steps."""
    if not rows:
        return 0
    slow = position_of_straggler(profiles)
    return slow if slow >= 0 else max(range(len(profiles)), key=lambda at: profiles[at].steps.mean)
