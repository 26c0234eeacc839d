"""A report as a piece of HTML for the output of a notebook's cell."""

from __future__ import annotations

from html import escape

from gapless.model import Finding, Report
from gapless.model.wording import count
from gapless.render import _brief as brief
from gapless.render import _words as words
from gapless.render._style import Style

_MAX_FINDINGS_SHOWN = 20
"""Findings listed: a notebook's cell is no place for more."""
_MAX_TEXT_LENGTH = 2_000
"""Characters of one text; kernel names can be longer."""


def render(report: Report, style: Style) -> str:
    """Render `report` as one HTML element without scripts, in the notebook's own colours."""
    verdict = report.verdict
    sure = f' <span style="opacity:.7">({_text(verdict.confidence)})</span>' if verdict.confidence else ""
    parts = [f"<p><b>{_text(brief.portable(verdict.headline))}</b>{sure}</p>"]
    parts += [f"<p>{_text(brief.portable(reason))}.</p>" for reason in verdict.reasons]
    if verdict.do_first:
        parts.append(f"<p><b>Do first</b> {_text(verdict.per)}</p>{_changes(report, style)}")
    shown = report.findings[:_MAX_FINDINGS_SHOWN]
    if shown:
        rows = "".join(_row(finding, report, style) for finding in shown)
        parts.append(_table(("rule", "where", "costs"), rows))
    left = len(report.findings) - len(shown)
    if left:
        parts.append(f"<p>… and {count(left, 'finding')} more</p>")
    parts += [f'<p style="opacity:.7">{_text(note)}</p>' for note in brief.remarks(report)]
    return f'<div class="gapless">{"".join(parts)}</div>'


def _changes(report: Report, style: Style) -> str:
    """Return the changes to make first: each with its place, and the step time before and after it."""
    rows = []
    for number, each in enumerate(report.verdict.do_first, 1):
        cells = (f"{number}", each.what, brief.where_to_change(each, style), brief.effect(each))
        rows.append(_cells([_text(brief.portable(cell)) for cell in cells]))
    return f"<table><tbody>{''.join(rows)}</tbody></table>"


def _table(names: tuple[str, ...], rows: str) -> str:
    head = "".join(f'<th style="text-align:left">{name}</th>' for name in names)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cells(cells: list[str]) -> str:
    row = "".join(f'<td style="text-align:left;vertical-align:top">{cell}</td>' for cell in cells)
    return f"<tr>{row}</tr>"


def _row(finding: Finding, report: Report, style: Style) -> str:
    weight = "font-weight:bold" if brief.level(finding) == "warning" else "opacity:.7"
    place = brief.where(finding, style)
    code = f"<br><code>{_text(finding.line.code)}</code>" if finding.line and finding.line.code else ""
    rows = [
        ("called", "; ".join(words.callers(finding, style.path))),
        ("waits", brief.waits(finding)),
        ("seen", "; ".join(finding.evidence)),
        ("instead", finding.remedy),
    ]
    parts_shown = "".join(f"<div><i>{label}</i> {_text(text)}</div>" for label, text in rows if text)
    details = f"<details><summary>{_text(place)}{code}</summary>{parts_shown}</details>"
    priced = [words.weight(finding, report), brief.cost(finding, report)]
    return _cells(
        [
            f'<span style="{weight}">{finding.code} {_text(finding.name)}</span>',
            ("backward of " if finding.backward and not finding.spots else "") + details,
            "<br>".join(_text(text) for text in priced if text),
        ]
    )


def _text(value: str) -> str:
    return escape(brief.cut(value, _MAX_TEXT_LENGTH))
