"""Render the report as GitHub Actions commands: annotations on the lines of a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Finding, Report
from gapless.render import _brief as brief
from gapless.render._style import Style

BESIDE = True
MAX_COMMAND_LENGTH = 16_000
"""Characters: GitHub shows only some kilobytes of an annotation."""
_COMMANDS = {"warning": "warning", "note": "notice"}


def render(report: Report, style: Style) -> str:
    """Render a command for each line of each finding, the worst first (a job shows ten of each kind)."""
    first = "\n".join(brief.verdict(report, style))
    lines = [command("notice", first, {"title": "Gapless"})]
    lines += [each for finding in report.findings for each in _annotations(finding, report, style)]
    lines += [command("notice", text, {"title": "Gapless"}) for text in brief.remarks(report)]
    return style.ascii("".join(f"{brief.cut(line, MAX_COMMAND_LENGTH)}\n" for line in lines))


def command(name: str, message: str, properties: dict[str, str]) -> str:
    """Return ``::warning file=a.py,line=3::message``, escaped so that nothing in it becomes a command."""
    fields = ",".join(f"{key}={_property(value)}" for key, value in properties.items() if value)
    return f"::{name} {fields}::{_data(message)}" if fields else f"::{name}::{_data(message)}"


def _annotations(finding: Finding, report: Report, style: Style) -> Iterator[str]:
    """Yield an annotation for each line: the first says everything, the others refer to its change."""
    name, title = _COMMANDS[brief.level(finding)], f"{finding.code} {finding.name}"
    text = brief.message(finding, report)
    lines = [line for line in finding.lines if brief.in_repository(line, style)]
    if not lines:
        yield command(name, f"{brief.plain(brief.where(finding, style))}: {text}", {"title": title})
    for position, line in enumerate(lines):
        file, number = brief.plain(brief.shown_path(line, style)), str(max(line.line, 1))
        yield command(name, text, {"file": file, "line": number, "title": title})
        if not position:
            instead = brief.plain(finding.remedy.partition("\n")[0])
            text = f"The change at {file}:{number} also fixes this line. Instead: {instead}."


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
