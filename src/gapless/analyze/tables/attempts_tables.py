"""Tables of what was tried: values of an argument, and changes that make a run fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gapless.analyze.phrases.fit import format_memory, until_full
from gapless.analyze.phrases.speed import samples_or_tokens
from gapless.memory.nccl import cell, note
from gapless.model import Report, Table
from gapless.model.attempt import Attempt
from gapless.model.memory_report import Buffers
from gapless.model.table import Row, table
from gapless.model.wording import duration, three_figures


def search_table(report: Report) -> Table | None:
    """Return a row for each value tried; None if none was."""
    result = report.search
    if result is None:
        return None
    unit = _unit(result.attempts)
    nccl = _nccl(report)
    rows = [
        _row(attempt, str(attempt.value), unit, nccl, best=attempt.value == result.found)
        for attempt in result.attempts
    ]
    passed = f"passed to the script as {result.words}" if result.words else ""
    notes = tuple(filter(None, [passed, _nccl_note(nccl, result.attempts)]))
    return table(f"{result.argument} tried", _columns(unit), rows, where="before", notes=notes)


def remedies_table(report: Report) -> Table | None:
    """Return a row for each change tried or calculated for a run that does not fit; None if none was."""
    if not report.remedies:
        return None
    unit = _unit(report.remedies)
    nccl = _nccl(report)
    rows = [
        _row(remedy, remedy.what, unit, nccl, best=remedy.helps and remedy.tried)
        for remedy in report.remedies
    ]
    remarks = [f"{remedy.what}: {remedy.note}" for remedy in report.remedies if remedy.note]
    notes = tuple(filter(None, [*remarks, _nccl_note(nccl, report.remedies)]))
    return table("What would make it fit", _columns(unit), rows, where="before", notes=notes)


def _nccl(report: Report) -> Buffers | None:
    return next((memory.nccl for memory in report.memory), None)


def _nccl_note(nccl: Buffers | None, attempts: Sequence[Attempt]) -> str:
    """Return a note if the memory left may be too little for NCCL."""
    return note(
        nccl, [(attempt.what, attempt.left) for attempt in attempts if attempt.fits and attempt.has >= 0]
    )


def _columns(unit: str) -> str:
    """Return the columns; speed only if there is a `unit`."""
    return " | ".join(filter(None, ["fits", "memory", "step", f"{unit}/s" if unit else "", "took"]))


def _unit(attempts: Sequence[Attempt]) -> str:
    """Return the unit of throughput of the first attempt that has one."""
    return next(
        (samples_or_tokens(attempt.throughput)[1] for attempt in attempts if attempt.throughput is not None),
        "",
    )


def _row(attempt: Attempt, name: str, unit: str, nccl: Buffers | None, best: bool) -> Row:
    """Return the row of one attempt."""
    if attempt.failed:
        cells = ("no", "", attempt.failed, *([""] if unit else []), _took(attempt))
        return Row((name, *cells), "dim")
    each, _ = samples_or_tokens(attempt.throughput)
    speed = three_figures(each * 1e9 / attempt.step.likely) if each and attempt.step.likely else ""
    cells = (
        until_full(attempt.lasts) or cell(attempt.fits, attempt.left, nccl if attempt.has >= 0 else None),
        format_memory(attempt),
        duration(attempt.step.likely) if attempt.step.likely else "",
        *([speed] if unit else []),
        _took(attempt),
    )
    return Row((name, *cells), "good" if best else "" if attempt.helps else "bad")


def _took(attempt: Attempt) -> str:
    """Return how long the attempt ran; ``reckoned`` if it was calculated."""
    return duration(attempt.seconds * 1e9) if attempt.tried else "reckoned"


def failures(attempts: Sequence[Attempt]) -> Iterator[str]:
    """Yield why attempts failed, each reason once."""
    yield from dict.fromkeys(attempt.failed for attempt in attempts if attempt.failed)
