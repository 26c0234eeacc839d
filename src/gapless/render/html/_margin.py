"""Prepare the user's source files, with what each line costs in the margin."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from gapless.model import Report, SourceLine
from gapless.model.wording import duration, rate_in_column, size
from gapless.render.html._clean import Clean
from gapless.render.html._source import Sources

_MAX_FILES_SHOWN = 12
"""Files shown, the dearest first: a page is for reading."""
_MAX_LINES_SHOWN = 4_000
"""Lines shown of all files together: a page is for reading."""


@dataclass
class _LineCost:
    """Costs of one source line: `waits` per step; nanoseconds of GPU `idle` time and of kernels (`device`) in
    all steps; bytes `held` at the memory's peak; and its findings."""

    waits: float = 0.0
    idle: int = 0
    device: int = 0
    held: int = 0
    findings: list[dict[str, Any]] = field(default_factory=list)


def files(
    report: Report, views: list[dict[str, Any]], sources: Sources, clean: Clean
) -> list[dict[str, Any]]:
    """Return the user's readable files that cost something, the dearest first."""
    marks = _marks(report, views, sources)
    weighed = sorted(marks.items(), key=lambda item: -sum(_weight(mark) for mark in item[1].values()))
    per = max(report.profile.steps.count, 1) if report.profile else 1
    columns = _columns(report, [mark for lines in marks.values() for mark in lines.values()])
    shown_files: list[dict[str, Any]] = []
    room = _MAX_LINES_SHOWN
    for file, lines in weighed[:_MAX_FILES_SHOWN]:
        most = max(map(_weight, lines.values())) or 1.0
        rows = [_row(n, text, lines.get(n), per, most) for n, text in sources.excerpt(file, lines)]
        room -= len(rows)
        if room < 0:
            break
        shown_files.append({"name": clean.path(file), "columns": columns, "rows": rows, "lines": len(lines)})
    return shown_files


def _columns(report: Report, lines: list[_LineCost]) -> list[tuple[str, str]]:
    """Return the columns beside the source: field of `_LineCost`, and heading."""
    columns = [("idle", "GPU idle"), ("device", "GPU time")] if report.profile else []
    columns += [("held", "at the peak")] if any(mark.held for mark in lines) else []
    return columns + ([("waits", "waits")] if not columns or any(mark.waits for mark in lines) else [])


def _weight(mark: _LineCost) -> float:
    """Return what lines are ranked by: idle time, else waits, else memory (scaled below any wait)."""
    return float(mark.idle) if mark.idle else mark.waits or mark.held * 1e-13


def _marks(report: Report, views: list[dict[str, Any]], sources: Sources) -> dict[str, dict[int, _LineCost]]:
    marks: dict[str, dict[int, _LineCost]] = defaultdict(lambda: defaultdict(_LineCost))

    def at(line: SourceLine | None) -> _LineCost | None:
        if line is None or not line.is_user or not sources.holds(line):
            return None
        return marks[line.file][line.line]

    for finding, view in zip(report.findings, views, strict=True):
        mark = at(finding.line)
        if mark is not None:
            mark.findings.append(view)
            if finding.loss is None or any(site.mechanism != "none" for site in finding.sites):
                mark.waits += finding.frequency.per_step
    for cost in report.profile.costs if report.profile else ():
        mark = at(cost.site.line) if cost.idle else None
        if mark is not None:
            mark.idle += cost.idle
    for line in report.profile.lines if report.profile else ():
        mark = at(line.site.line)
        if mark is not None:
            mark.device += line.total
    for owner in (owner for memory in report.memory for owner in memory.peak.owners):
        mark = at(owner.line)
        if mark is not None:
            mark.held += owner.bytes
    return marks


def _row(n: int, text: object, mark: _LineCost | None, per: int, most: float) -> dict[str, Any]:
    if mark is None:
        return {"n": n, "text": text}
    return {
        "n": n,
        "text": text,
        "waits": rate_in_column(mark.waits) if mark.waits else "",
        "idle": duration(mark.idle / per) if mark.idle else "",
        "device": duration(mark.device / per) if mark.device else "",
        "held": size(mark.held) if mark.held else "",
        "heat": f"{100 * _weight(mark) / most:.0f}",
        "findings": mark.findings,
    }
