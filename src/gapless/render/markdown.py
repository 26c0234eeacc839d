"""Render the report as Markdown, for a pull request or the summary of a job."""

from __future__ import annotations

import re

from gapless.model import Finding, Report, SourceLine, Table
from gapless.model.table import Cell
from gapless.model.wording import count
from gapless.render import _brief as brief
from gapless.render import _words as words
from gapless.render._style import Style

SUMMARIZED = True
"""Several reports begin with a summary of all."""
BETWEEN = "\n"
_MAX_ROWS_SHOWN = 50
"""Findings in the table: a comment on GitHub holds 65,536 characters."""
_MAX_DETAILED_FINDINGS = 20
"""Findings with details, which take most of those characters."""
_MAX_TEXT_LENGTH = 2_000
"""Characters of one text; kernel names can be longer."""
_UNSAFE_IN_HTML = re.compile(r"[^\w\s.,;()=+/-]|_")
"""Characters to escape in HTML tags amid Markdown: special in either language."""
_UNSAFE_IN_TEXT = re.compile(
    r"[\\`*<>&\[\]|~$@]|(?<![^\W_])_|_(?![^\W_])|^[-+#=]|(?<=^\d)[.)](?!\S)|:(?=//)|(?<=www)\."
)
"""Characters to escape in text. An underscore within a word is not special."""


def render(report: Report, style: Style) -> str:
    """Render `report`: the verdict, a table of the findings, and their details folded away."""
    parts = [f"### {text(report.verdict.headline)}\n", *_first(report, style)]
    about = _about(report, style)
    if about:
        parts.append(about + "\n")
    if report.findings:
        parts.append(_table(report, style))
        parts.append(_details(report, style))
    parts += [_numbers(table, style) for table in report.tables if table.shown]
    notes = brief.remarks(report)
    if notes:
        parts.append("".join(f"- {text(note)}\n" for note in notes))
    return style.ascii("\n".join(part for part in parts if part))


def text(value: str) -> str:
    """Return `value` as Markdown that shows it literally: nobody is mentioned, nothing is linked."""
    # Every other piece is code: remedies put it between backticks.
    pieces = re.split(r"`([^`]+)`", brief.cut(value, _MAX_TEXT_LENGTH).strip())
    rendered = [code(piece) if number % 2 else _escape(piece) for number, piece in enumerate(pieces)]
    between = [piece or " " for piece in rendered[1:-1]]  # two spans side by side would make one
    return "".join([rendered[0], *between, *rendered[1:][-1:]])


def code(value: str) -> str:
    """Return `value` as inline code, valid in tables too."""
    cut = brief.cut(value, _MAX_TEXT_LENGTH).strip()
    if "|" in cut or "`" in cut:  # a table ends its cell there, or the span itself
        return f"<code>{_UNSAFE_IN_HTML.sub(lambda match: f'&#{ord(match.group())};', cut)}</code>"
    return f"`{cut}`" if cut else ""


def _block(value: str) -> str:
    """Return lines of Python in a fence longer than any in them."""
    cut = "\n".join(brief.cut(line, _MAX_TEXT_LENGTH) for line in value.split("\n"))
    longest = max(map(len, re.findall("`+", cut)), default=0)
    fence = "`" * max(longest + 1, 3)
    return f"{fence}python\n{cut}\n{fence}\n"


def _escape(value: str) -> str:
    return _UNSAFE_IN_TEXT.sub(lambda match: f"&#{ord(match.group())};", value)


def _about(report: Report, style: Style) -> str:
    steps = report.steps
    parts = [code(brief.subject(report, style))]
    if report.environment.device:
        emulated = "emulated " if report.environment.emulated else ""
        parts.append(text(f"{emulated}{report.environment.device}"))
    if steps.seen:
        parts.append(text(f"{count(steps.seen, 'step')} ({steps.source})"))
    return " · ".join(part for part in parts if part)


def _table(report: Report, style: Style) -> str:
    rows = ["| | rule | where | how often |", "|---|---|---|---|"]
    for finding in report.findings[:_MAX_ROWS_SHOWN]:
        sign = "⚠️" if brief.level(finding) == "warning" else ""
        if not style.unicode and sign:
            sign = "!"
        rule = f"{finding.code} {text(finding.name)}"
        rows.append(f"| {sign} | {rule} | {_where(finding, style)} | {text(words.weight(finding, report))} |")
    left = len(report.findings) - _MAX_ROWS_SHOWN
    if left > 0:
        rows.append(f"| | … and {count(left, 'finding')} more | | |")
    return "\n".join(rows) + "\n"


def _where(finding: Finding, style: Style) -> str:
    place = code(brief.where(finding, style))
    return f"backward of {place}" if finding.backward and finding.line else place


def _details(report: Report, style: Style) -> str:
    shown = report.findings[:_MAX_DETAILED_FINDINGS]
    title = f"What waits, and what to write instead ({count(len(shown), 'finding')})"
    body = "\n".join(_detail(finding, report, style) for finding in shown)
    return f"<details>\n<summary>{title}</summary>\n\n{body}\n</details>\n"


def _detail(finding: Finding, report: Report, style: Style) -> str:
    lines = [f"**{finding.code} {text(finding.name)}** at {_where(finding, style)}\n"]
    if finding.line is not None and finding.line.code:
        lines.append(_block(finding.line.code))
    frames = [f"{brief.shown_path(line, style)}:{line.line}" for line in reversed(finding.library_stack)]
    rows = [
        ("through", " → ".join(code(frame) for frame in frames[:1] + frames[1:][-2:])),
        ("seen", text("; ".join(finding.evidence))),
        ("costs", text(brief.cost(finding, report))),
        ("waits", text(brief.waits(finding))),
        ("instead", text(finding.remedy)),
    ]
    lines += [f"- {label}: {value}" for label, value in rows if value]
    return "\n".join(lines) + "\n"


def _first(report: Report, style: Style) -> list[str]:
    """Return the confidence, the reasons, and the list of what to do first."""
    answer = report.verdict
    lines = [f"{text(answer.confidence)}\n"] if answer.confidence else []
    lines += [f"{text(reason)}.\n" for reason in answer.reasons]
    rows = []
    for number, each in enumerate(answer.do_first, 1):
        brought = text(brief.effect(each))
        parts = text(each.what), code(brief.where_to_change(each, style)), f"**{brought}**" if brought else ""
        rows.append(f"{number}. {' · '.join(filter(None, parts))}\n")
    return [*lines, "".join(rows)] if rows else lines


def _numbers(table: Table, style: Style) -> str:
    """Return a table in Markdown, without its drawn columns."""
    if table.rows and all(row.tone == "command" for row in table.rows):
        return f"{text(table.title)}:\n\n" + _block("\n".join(str(row.cells[-1]) for row in table.rows))
    kept = [n for n, column in enumerate(table.columns) if column.kind != "drawn"]
    names = [table.title, *(column.name for column in table.columns[1:])]
    marks = ["---:" if table.columns[n].kind == "number" and n else "---" for n in kept]
    rows = [f"| {' | '.join(text(names[n]) for n in kept)} |", f"|{'|'.join(marks)}|"]
    for row in table.rows[: table.shown] if table.shown > 0 else table.rows:
        rows.append(f"| {' | '.join(_cell(row.cells[n], style) for n in kept)} |")
    left = len(table.rows) - table.shown if table.shown > 0 else 0
    rows += [f"| … and {left} {text(table.rest)} |{' |' * (len(kept) - 1)}"] if left > 0 else []
    body = "\n".join(rows) + "\n" if table.rows else ""
    return body + "".join(f"\n{text(note)}.\n" for note in table.notes)


def _cell(cell: Cell, style: Style) -> str:
    if isinstance(cell, SourceLine):
        return code(brief.shown_path(cell, style) + (f":{cell.line}" if cell.line else ""))
    return text(cell) if isinstance(cell, str) else ""
