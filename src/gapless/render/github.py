"""The report as commands of a GitHub Actions workflow: annotations on the lines of a pull request."""

from __future__ import annotations

from gapless.model import Finding, Report
from gapless.render import _brief as brief
from gapless.render._style import Style

_COMMANDS = {"warning": "warning", "note": "notice"}


def render(report: Report, style: Style) -> str:
    """`report` as a line for each finding, the worst first (a job shows the first ten of each kind)."""
    first = "\n".join(brief.verdict(report, style))
    lines = [command("notice", first, {"title": "Gapless"})]
    lines += [_annotation(one, report, style) for one in report.findings]
    lines += [command("notice", text, {"title": "Gapless"}) for text in brief.remarks(report)]
    return style.ascii("".join(f"{line}\n" for line in lines))


def command(name: str, message: str, properties: dict[str, str]) -> str:
    """``::warning file=a.py,line=3::message``, so that nothing in it is taken for another command."""
    told = ",".join(f"{key}={_property(value)}" for key, value in properties.items() if value)
    return f"::{name} {told}::{_data(message)}" if told else f"::{name}::{_data(message)}"


def _annotation(one: Finding, report: Report, style: Style) -> str:
    text = brief.message(one, report)
    properties = {"file": "", "line": "", "title": f"{one.code} {one.name}"}
    if one.line is not None and brief.in_repository(one.line, style):
        properties["file"] = brief.plain(brief.shown_path(one.line, style))
        properties["line"] = str(max(one.line.line, 1))
    else:
        text = f"{brief.plain(brief.where(one, style))}: {text}"
    return command(_COMMANDS[brief.level(one)], text, properties)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
