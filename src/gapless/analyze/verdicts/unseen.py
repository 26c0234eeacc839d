"""What the verdict says was not seen, and how to see it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from gapless.analyze.verdicts.phases_verdict import unchecked_clause
from gapless.model import Report
from gapless.model.wording import binary_size, count

_MAX_NAMED = 3
"""Operators or lines named in a sentence."""


def unseen_notes(report: Report) -> Iterator[str]:
    """Yield how the run ended, if that limits what was seen, and what to do about it."""
    how_ended, status, message = report.ending.how, report.ending.status, report.ending.message
    who = "The cell" if report.script == ("the cell",) else "The script"
    if how_ended == "enough-steps":
        yield f"Only {count(report.steps.seen, 'training step')} ran; {unchecked_clause(report)}"
    elif how_ended == "exit" and status:
        yield f"{who} exited with status {status}: only what ran until then was checked"
    elif how_ended == "interrupted":
        yield f"{who} was interrupted: only what ran until then was checked"
    elif how_ended == "error":
        reason = f" ({message})" if report.steps.seen else ""  # without steps the first sentence says it
        yield f"{who} failed{reason}: only what ran until then was checked"
    elif how_ended == "not-emulated":
        reason = f": {message.rstrip('.')}" if report.steps.seen else ""
        yield f"The run ended early{reason}"
    if report.environment.dry:
        yield _assumption_note(report)
    if report.unknown:
        yield unknown_note(report.unknown)
    for memory in report.memory:
        if memory.limit < 0:
            most = binary_size(memory.baseline.peak_reserved)
            yield (
                f"Whether its memory fits was not checked: at most {most} (`gapless memory --gpu NAME FILE`)"
            )


def _assumption_note(report: Report) -> str:
    """Say that printed losses are assumed, and which decisions depend on assumed values."""
    at = report.switch.line if report.switch is not None else None
    since = f" from {at.short} on" if at is not None else ""
    numbers = f"Numbers that the script printed or saved{since} are assumed (`--values` computes them)"
    if not report.assumptions:
        return numbers
    lines = list(
        dict.fromkeys(
            assumption.line.short for assumption in report.assumptions if assumption.line is not None
        )
    )
    more = f" and {count(len(lines) - _MAX_NAMED, 'other line')}" if len(lines) > _MAX_NAMED else ""
    decisions, verb = (
        count(len(report.assumptions), "decision"),
        "is" if len(report.assumptions) == 1 else "are",
    )
    places = f" ({', '.join(lines[:_MAX_NAMED])}{more})" if lines else ""
    return f"{numbers}, and so {verb} {decisions}{places} (`--assume FILE:LINE=VALUE` sets them)"


def unknown_note(operators: Sequence[str]) -> str:
    """Say which operators may wait unnoticed.

    >>> unknown_note(["mylib::scan"])
    'Whether mylib::scan makes the CPU wait is not known: syncs in it are not counted'
    """
    shown = ", ".join(operators[:_MAX_NAMED])
    rest = len(operators) - _MAX_NAMED
    names = f"{shown} and {count(rest, 'other operator')}" if rest > 0 else shown
    makes, pronoun = ("makes", "it") if len(operators) == 1 else ("make", "them")
    return f"Whether {names} {makes} the CPU wait is not known: syncs in {pronoun} are not counted"


def script_name(script: Sequence[str]) -> str:
    """Return the name of what was run: the script's file, or the module after ``-m``."""
    if not script:
        return "the run"
    return script[1] if script[0] == "-m" and len(script) > 1 else os.path.basename(script[0])
