"""What the verdict says of phases: what recurs between steps, and what was not reached."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gapless.analyze.run.phases import CHECKPOINT, EVALUATION, prefer_own_names
from gapless.analyze.verdicts.changes import changes
from gapless.model import Change, Recurrence, Report
from gapless.model.wording import describe_phase, number

_MAX_NAMED = 3
"""Phases named in the first sentence."""
_MAX_CHANGES = 2
"""Changes of phases listed beside those that have a price."""
_MAX_RARE_SYNCS = 0.1
"""Syncs per step, averaged over the steps between phases, not worth fixing."""


def phase_clause(report: Report, steps_too: bool) -> str:
    """Return ``; 192 more at each rollout (every 16 steps)`` to follow a sentence on steps; "" if none."""
    parts: list[str] = []
    reached = [phase for phase in report.phases if phase.waits]
    many = [phase for phase in reached if _syncs_per_step(phase, report) > _MAX_RARE_SYNCS]
    for phase in (many or reached)[:_MAX_NAMED]:
        about = "" if phase.waits == int(phase.waits) else "about "
        more = " more" if steps_too and not parts else ""
        when = describe_phase(_when(phase.name), phase.name, phase.times, phase.every)
        parts.append(f"{about}{number(round(phase.waits))}{more} {when}")
    return f"; {', '.join(parts)}" if parts else ""


def _when(phase: str) -> str:
    """Return whether a phase is an evaluation, as a `Frequency` says it."""
    return "evaluation" if phase == EVALUATION else "phase"


def phase_syncs_per_step(report: Report) -> float:
    """Return syncs of all phases per step, without checkpoints, which have to copy what they save."""
    return sum(_syncs_per_step(phase, report) for phase in report.phases if phase.name != CHECKPOINT)


def _syncs_per_step(phase: Recurrence, report: Report) -> float:
    """Return the phase's syncs divided by the steps between two of it."""
    return phase.waits / (phase.every or max(report.steps.seen, 1))


def worth_fixing(report: Report) -> bool:
    """Whether phases sync more than a log line now and then does."""
    return phase_syncs_per_step(report) > _MAX_RARE_SYNCS


def phase_changes(report: Report) -> tuple[Change, ...]:
    """Return what to change in phases; these changes have no price."""
    if not worth_fixing(report):
        return ()
    results: list[Change] = []
    for phase in report.phases:
        if phase.name == CHECKPOINT or not phase.waits or _syncs_per_step(phase, report) <= _MAX_RARE_SYNCS:
            continue
        timings = ((n, finding.frequency) for n, finding in enumerate(report.findings))
        waits = {n: timing.waits for n, timing in timings if timing.phase == phase.name}
        for change in changes(report.findings, waits.items(), phase.waits, unit="syncs")[:_MAX_CHANGES]:
            edit = f"{describe_phase(_when(phase.name), phase.name, 2)}: {change.what}"
            results.append(msgspec.structs.replace(change, what=edit))
    return tuple(results[:_MAX_CHANGES])


def unchecked_clause(report: Report) -> str:
    """Say what a stopped run did not reach, and the option that reaches it."""
    whole = report.planned.steps
    unreached = prefer_own_names(
        phase for phase in report.phases if not phase.times and not (0 < whole < phase.every)
    )
    if unreached:
        furthest = max(phase.every for phase in unreached) if all(phase.every for phase in unreached) else 0
        verb = "was" if len(unreached) == 1 else "were"
        names = " and ".join(_unreached_phases(unreached))
        return f"{names} {verb} not checked (`--steps {furthest or 'all'}`)"
    reached = {phase.name for phase in report.phases}
    if report.steps.noun != "step":
        return "what comes later was not checked (`--steps all`)"
    usual = ((EVALUATION, "evaluation"), (CHECKPOINT, "checkpointing"))
    rest = [name for word, name in usual if word not in reached]
    if not rest:
        return "what comes later was not checked (`--steps all`)"
    return f"{' and '.join(rest)} {'was' if len(rest) == 1 else 'were'} not checked (`--steps all`)"


def _unreached_phases(phases: list[Recurrence]) -> Iterator[str]:
    """Yield the name of each phase not reached, with period and line."""
    for phase in phases:
        where = f" ({phase.line.short})" if phase.line is not None else ""
        yield f"the {phase.name}{f' every {phase.every} steps' if phase.every else ''}{where}"
