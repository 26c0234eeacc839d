"""Compare the syncs of two sessions of an emulated or watched run."""

from __future__ import annotations

import msgspec

from gapless.analyze.compare.changed_findings import session_changes
from gapless.analyze.compare.notes import session_notes
from gapless.analyze.compare.sentence import session_sentence
from gapless.model import Finding, Report
from gapless.model.comparison import Comparison, Measure, Side


def compare_reports(before: tuple[str, Report], after: tuple[str, Report]) -> Comparison:
    """Compare two reports of sessions, each with its name: syncs per step, and findings.

    The reports must name each line by itself (`by_line`), else a line that joins a finding goes unnoticed.
    """
    sides = _side(*before), _side(*after)
    per_step = all(side.steps for side in sides)
    numbers = [_waits(report, per_step) for _, report in (before, after)]
    comparison = Comparison(
        sentence="",
        of="sessions",
        per="step" if per_step else "run",
        before=sides[0],
        after=sides[1],
        length=Measure(name="waits", before=numbers[0], after=numbers[1], unit="waits"),
        findings=tuple(
            msgspec.structs.replace(
                row, unseen=row.state == "new" and _came_too_late(row.finding, before[1], after[1])
            )
            for row in session_changes(
                before[1].findings, after[1].findings, (_script(before[1]), _script(after[1]))
            )
        ),
    )
    notes = session_notes(before[1], after[1], comparison)
    return msgspec.structs.replace(comparison, sentence=session_sentence(comparison), notes=notes)


def _came_too_late(new: Finding, before: Report, after: Report) -> bool:
    """Whether `new` is new only because the first run ended before it could occur."""
    went_on = after.steps.seen > before.steps.seen or after.ending.how in ("finished", "exit")
    if before.ending.how in ("finished", "exit") or not went_on:
        return False
    often = new.frequency
    return often.when in ("evaluation", "after") or often.every > before.steps.seen


def _side(name: str, report: Report) -> Side:
    return Side(
        name=name,
        path=name,
        rank=report.environment.rank if report.environment.world_size > 1 else -1,
        device=report.environment.device,
        steps=report.steps.steady,
        marks=report.steps.source,
    )


def _waits(report: Report, per_step: bool) -> float:
    if per_step:
        return report.steps.waits_per_step
    return float(sum(finding.frequency.total for finding in report.findings))


def _script(report: Report) -> str:
    """The file that was run; "" for a module."""
    return report.script[0] if report.script and report.script[0] != "-m" else ""
