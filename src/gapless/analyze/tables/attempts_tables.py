"""Tables of what was tried: values of an argument, and changes that make a run fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gapless.analyze.phrases.fit import memory_of, until_full
from gapless.analyze.phrases.speed import each_of
from gapless.memory.nccl import cell, note
from gapless.model import Report, Table
from gapless.model.attempt import Attempt
from gapless.model.memory_report import Buffers
from gapless.model.table import Row, table
from gapless.model.wording import about, duration


def search(report: Report) -> Table | None:
    """A row for each value that was tried; None where none was."""
    made = report.search
    if made is None:
        return None
    unit = _unit(made.attempts)
    nccl = _nccl(report)
    rows = [_row(one, str(one.value), unit, nccl, best=one.value == made.found) for one in made.attempts]
    given = f"passed to the script as {made.words}" if made.words else ""
    notes = tuple(filter(None, [given, _scarce(nccl, made.attempts)]))
    return table(f"{made.argument} tried", _columns(unit), rows, where="before", notes=notes)


def remedies(report: Report) -> Table | None:
    """A row for each change that was tried, or reckoned, where the run does not fit."""
    if not report.remedies:
        return None
    unit = _unit(report.remedies)
    nccl = _nccl(report)
    rows = [_row(one, one.what, unit, nccl, best=one.helps and one.tried) for one in report.remedies]
    told = [f"{one.what}: {one.note}" for one in report.remedies if one.note]
    notes = tuple(filter(None, [*told, _scarce(nccl, report.remedies)]))
    return table("What would make it fit", _columns(unit), rows, where="before", notes=notes)


def _nccl(report: Report) -> Buffers | None:
    return next((made.nccl for made in report.memory), None)


def _scarce(nccl: Buffers | None, attempts: Sequence[Attempt]) -> str:
    return note(nccl, [(one.what, one.left) for one in attempts if one.fits and one.has >= 0])


def _columns(unit: str) -> str:
    return " | ".join(filter(None, ["fits", "memory", "step", f"{unit}/s" if unit else "", "took"]))


def _unit(attempts: Sequence[Attempt]) -> str:
    return next((each_of(one.throughput)[1] for one in attempts if one.throughput is not None), "")


def _row(attempt: Attempt, name: str, unit: str, nccl: Buffers | None, best: bool) -> Row:
    if attempt.failed:
        cells = ("no", "", attempt.failed, *([""] if unit else []), _took(attempt))
        return Row((name, *cells), "dim")
    each, _ = each_of(attempt.throughput)
    speed = about(each * 1e9 / attempt.step.likely) if each and attempt.step.likely else ""
    cells = (
        until_full(attempt.lasts) or cell(attempt.fits, attempt.left, nccl if attempt.has >= 0 else None),
        memory_of(attempt),
        duration(attempt.step.likely) if attempt.step.likely else "",
        *([speed] if unit else []),
        _took(attempt),
    )
    return Row((name, *cells), "good" if best else "" if attempt.helps else "bad")


def _took(attempt: Attempt) -> str:
    return duration(attempt.seconds * 1e9) if attempt.tried else "reckoned"


def failures(attempts: Sequence[Attempt]) -> Iterator[str]:
    """Why attempts tell nothing, each reason once."""
    yield from dict.fromkeys(one.failed for one in attempts if one.failed)
