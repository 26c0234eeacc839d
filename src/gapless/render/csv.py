"""Render findings as CSV, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from gapless.model import Finding, Report
from gapless.model.wording import number
from gapless.render import _brief as brief
from gapless.render._style import Style

COLUMNS = (
    "run",
    "code",
    "name",
    "level",
    "file",
    "line",
    "lines",
    "function",
    "backward",
    "when",
    "every",
    "syncs_per_step",
    "syncs",
    "idle_ns_per_step",
    "idle_share",
    "saves_ns_per_step",
    "saves_at_most_ns_per_step",
    "place",
    "remedy",
)
"""Numbers are plain; unknown values are empty cells."""
MAX_CELL_LENGTH = 4_000
"""Characters: spreadsheets take 32,767, and nobody reads names that long."""
_FORMULA_SIGNS = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
"""First characters of a spreadsheet's formula, in full width too."""


def render(report: Report, style: Style) -> str:
    """Render a header and one row for each finding of `report`."""
    return together([report], style)


def together(reports: Sequence[Report], style: Style) -> str:
    """Render the findings of all `reports` below one header; the column `run` distinguishes them."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for report in reports:
        for finding in report.findings:
            writer.writerow(
                [
                    cell if isinstance(cell, int | float) else _text(cell, style)
                    for cell in _row(finding, report, style)
                ]
            )
    return text.getvalue()


def _row(finding: Finding, report: Report, style: Style) -> Iterator[str | int | float]:
    line = finding.line
    yield brief.run(report, style)
    yield from (finding.code, finding.name, brief.level(finding))
    yield brief.shown_path(line, style) if line else ""
    yield line.line if line else ""
    yield " ".join(str(spot.line.line) for spot in finding.spots)
    yield line.function if line else ""
    yield int(finding.backward)
    yield finding.frequency.when
    yield finding.frequency.every or ""
    yield number(round(finding.frequency.per_step, 4)) if finding.loss is None else ""
    yield finding.frequency.total if finding.loss is None else finding.loss.calls
    yield from _times(finding, report)
    yield finding.place
    yield finding.remedy


def _times(finding: Finding, report: Report) -> Iterator[str | int | float]:
    """Yield idle time per step, its share, and what the fix saves per step: alone, and at most."""
    steps = max(report.profile.steps.count, 1) if report.profile is not None else 1
    is_known = finding.loss is not None and not finding.loss.unknown
    yield round(finding.loss.idle / steps) if finding.loss is not None and is_known else ""
    yield round(finding.loss.share, 6) if finding.loss is not None and is_known else ""
    price = finding.price
    if price is None or not (price.waits or price.estimated or price.of):
        yield from ("", "")
    elif price.estimated:
        yield from (price.alone, price.most_last)
    elif report.profile is not None and report.profile.prices and report.profile.prices.reasons:
        yield from ("", round(max(price.alone, price.last) / steps))  # an upper limit
    else:
        yield from (round(price.alone / steps), round(price.last / steps))


def _text(value: str, style: Style) -> str:
    """Return `value` in one line; with a leading quote if a spreadsheet would read a formula."""
    cell = style.ascii(brief.cut(value, MAX_CELL_LENGTH))
    return f"'{cell}" if cell.lstrip().startswith(_FORMULA_SIGNS) else cell
