"""A report as a piece of HTML for the output of a notebook's cell."""

from __future__ import annotations

from html import escape

from gapless.model import Finding, Report
from gapless.model.wording import count
from gapless.render import _brief as brief
from gapless.render import _words as words
from gapless.render._style import Style

_UNFOLDED = 20
"""Findings that are told one by one."""
_LONG = 2_000


def render(report: Report, style: Style) -> str:
    """`report` as one element without scripts; it takes its colours from the notebook."""
    first, *more = brief.verdict(report, style)
    parts = [f"<p><b>{_text(first)}</b></p>", *(f"<p>{_text(line)}</p>" for line in more)]
    shown = report.findings[:_UNFOLDED]
    if shown:
        rows = "".join(_row(one, report, style) for one in shown)
        head = "".join(f'<th style="text-align:left">{name}</th>' for name in ("rule", "where", "how often"))
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>")
    left = len(report.findings) - len(shown)
    if left:
        parts.append(f"<p>… and {count(left, 'finding')} more</p>")
    parts += [f'<p style="opacity:.7">{_text(note)}</p>' for note in brief.remarks(report)]
    return f'<div class="gapless">{"".join(parts)}</div>'


def _row(one: Finding, report: Report, style: Style) -> str:
    weight = "font-weight:bold" if brief.level(one) == "warning" else "opacity:.7"
    where = _text(brief.where(one, style))
    code = f"<br><code>{_text(one.line.code)}</code>" if one.line and one.line.code else ""
    rows = [
        ("waits", brief.waits(one)),
        ("seen", "; ".join(one.evidence)),
        ("costs", brief.cost(one, report)),
        ("instead", one.remedy),
    ]
    told = "".join(f"<div><i>{label}</i> {_text(text)}</div>" for label, text in rows if text)
    details = f"<details><summary>{where}{code}</summary>{told}</details>"
    cells = (
        f'<span style="{weight}">{one.code} {_text(one.name)}</span>',
        ("backward of " if one.backward else "") + details,
        _text(words.weight(one, report)),
    )
    row = "".join(f'<td style="text-align:left;vertical-align:top">{cell}</td>' for cell in cells)
    return f"<tr>{row}</tr>"


def _text(value: str) -> str:
    cut = brief.plain(value)
    return escape(cut if len(cut) <= _LONG else cut[: _LONG - 1] + "…")
