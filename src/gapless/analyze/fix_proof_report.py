"""Turn the proof of an edit into a `Report`."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Report, Verdict
from gapless.model.fix import FixProof
from gapless.model.source import places
from gapless.model.table import Table, row, table
from gapless.model.verdict import Level
from gapless.model.wording import count, number, rate_in_column

_LEVELS: dict[str, Level] = {"bits": "fine", "rounding": "fine", "refused": "failed", "unprovable": "unknown"}
_MAX_LINES_NAMED = 5
"""Edited lines that never ran and that the reasons name."""
_MAX_ROWS_SHOWN = 10
"""Lines whose waits changed that are shown before everything is unfolded."""


def report_fix_proof(proof: FixProof) -> Report:
    """Build the report of a proof: the verdict, and the lines whose waits changed."""
    return Report(
        verdict=Verdict(sentence=_sentence(proof), level=_LEVELS[proof.outcome], why=tuple(_reasons(proof))),
        kind="edit",
        tables=(_waits(proof),) if proof.lines else (),
        notes=proof.notes,
        edit=proof,
    )


def _sentence(proof: FixProof) -> str:
    if proof.outcome == "refused":
        return f"Refused: {proof.reason}"
    if proof.outcome == "unprovable":
        return f"Not proved: {proof.reason}"
    how = (
        "bit for bit"
        if proof.outcome == "bits"
        else f"to rounding (within {proof.bound:g} of each tensor's largest element)"
    )
    if not proof.proved:
        return f"Proved {how}, but it removes no sync ({number(proof.before)} per step, as before)"
    if number(proof.before) == number(proof.after):
        before, after = (sum(getattr(line, side) for line in proof.lines) for side in _TOTALS)
        return f"Proved {how}: {before - after} fewer syncs outside of the steps"
    return f"Proved {how}: {number(proof.after)} syncs per step instead of {number(proof.before)}"


_TOTALS = ("total_before", "total_after")


def _reasons(proof: FixProof) -> Iterator[str]:
    """Yield what was compared, and how far the runs went."""
    if proof.endings[0].is_good and proof.endings[1].is_good:
        parts = []
        if proof.parameters != "none":
            same = {"bits": "the same bits", "rounding": "within the bound", "different": "different"}
            parts.append(f"parameters after {count(proof.steps, 'optimizer step')}: {same[proof.parameters]}")
        parts.append(f"printed lines: {'the same' if proof.printed else 'different'}")
        yield "Compared " + "; ".join(parts)
    if proof.stopped:
        steps = count(proof.steps, "step")
        yield f"Both runs were stopped after {steps}: what follows was not compared (--seconds)"
    if proof.races:
        yield f"Races that only the version after has: {', '.join(proof.races)}"
    if proof.not_run:
        more = len(proof.not_run) - _MAX_LINES_NAMED
        rest = f" and {more} more" if more > 0 else ""
        yield f"Edited lines that never ran: {places(proof.not_run[:_MAX_LINES_NAMED], str)}{rest}"


def _waits(proof: FixProof) -> Table:
    """Return where waits changed: per step, and in the whole run."""
    rows = [
        row(
            line.line,
            rate_in_column(line.before),
            rate_in_column(line.after),
            str(line.total_before),
            str(line.total_after),
            tone="bad" if line.total_after > line.total_before else "good",
        )
        for line in proof.lines
    ]
    columns = "per step before | after | whole run before | after"
    return table("Where syncs changed", columns, rows, shown=_MAX_ROWS_SHOWN)
