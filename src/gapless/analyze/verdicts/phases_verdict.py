"""What the verdict says of phases: what recurs between steps, and what was not reached."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gapless.analyze.run.phases import CHECKPOINT, EVALUATION, telling
from gapless.analyze.verdicts.changes import changes
from gapless.model import Change, Recurrence, Report
from gapless.model.wording import number, part

_NAMED = 3
"""Phases that are told in the first sentence."""
_BESIDE = 2
"""Changes of phases that stand beside those that have a price."""
_RARE = 0.1
"""Syncs per step, shared out over the steps between them, that are not worth anybody's time."""


def between(report: Report, steps_too: bool) -> str:
    """``; 192 more at each rollout (every 16 steps)``, to follow what is said of steps; else ""."""
    told: list[str] = []
    seen = [one for one in report.phases if one.waits]
    many = [one for one in seen if _shared_out(one, report) > _RARE]
    for one in (many or seen)[:_NAMED]:
        about = "" if one.waits == int(one.waits) else "about "
        more = " more" if steps_too and not told else ""
        when = part(_when(one.name), one.name, one.times, one.every)
        told.append(f"{about}{number(round(one.waits))}{more} {when}")
    return f"; {', '.join(told)}" if told else ""


def _when(phase: str) -> str:
    return "evaluation" if phase == EVALUATION else "phase"


def added(report: Report) -> float:
    """Syncs of all phases, shared out over the steps; a checkpoint has to copy what it saves."""
    return sum(_shared_out(one, report) for one in report.phases if one.name != CHECKPOINT)


def _shared_out(phase: Recurrence, report: Report) -> float:
    return phase.waits / (phase.every or max(report.steps.seen, 1))


def worth_fixing(report: Report) -> bool:
    """Whether what recurs between steps is more than a log line now and then."""
    return added(report) > _RARE


def beside(report: Report) -> tuple[Change, ...]:
    """What to change in phases, which have no price."""
    if not worth_fixing(report):
        return ()
    made: list[Change] = []
    for phase in report.phases:
        if phase.name == CHECKPOINT or not phase.waits or _shared_out(phase, report) <= _RARE:
            continue
        of = ((n, one.frequency) for n, one in enumerate(report.findings))
        waits = {n: often.waits for n, often in of if often.phase == phase.name}
        for one in changes(report.findings, waits.items(), phase.waits, unit="syncs")[:_BESIDE]:
            what = f"{part(_when(phase.name), phase.name, 2)}: {one.what}"
            made.append(msgspec.structs.replace(one, what=what))
    return tuple(made[:_BESIDE])


def missed(report: Report) -> str:
    """What a run that was stopped did not come to, and the option with which it does."""
    whole = report.planned.steps
    unreached = telling(one for one in report.phases if not one.times and not (0 < whole < one.every))
    if unreached:
        far = max(one.every for one in unreached) if all(one.every for one in unreached) else 0
        verb = "was" if len(unreached) == 1 else "were"
        names = " and ".join(_unreached(unreached))
        return f"{names} {verb} not checked (`--steps {far or 'all'}`)"
    seen = {one.name for one in report.phases}
    if report.steps.noun != "step":
        return "what comes later was not checked (`--steps all`)"
    usual = ((EVALUATION, "evaluation"), (CHECKPOINT, "checkpointing"))
    rest = [name for word, name in usual if word not in seen]
    if not rest:
        return "what comes later was not checked (`--steps all`)"
    return f"{' and '.join(rest)} {'was' if len(rest) == 1 else 'were'} not checked (`--steps all`)"


def _unreached(phases: list[Recurrence]) -> Iterator[str]:
    for one in phases:
        where = f" ({one.line.short})" if one.line is not None else ""
        yield f"the {one.name}{f' every {one.every} steps' if one.every else ''}{where}"
