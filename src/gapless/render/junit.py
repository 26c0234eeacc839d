"""Render the report as JUnit XML: a test case for each finding, failed if it costs training steps."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from gapless.model import Finding, Report
from gapless.render import _brief as brief
from gapless.render import _words as words
from gapless.render._style import Style


def render(report: Report, style: Style) -> str:
    """Render `report` as one suite. A run that ended early is an error, one without findings passes."""
    return together([report], style)


def together(reports: Sequence[Report], style: Style) -> str:
    """Render several reports as one document, a suite for each."""
    suites = [_suite(report, style) for report in reports]
    text = '<testsuites name="gapless">\n' + "\n".join(suites) + "\n</testsuites>\n"
    return text if style.unicode else text.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _suite(report: Report, style: Style) -> str:
    subject = brief.subject(report, style) or "gapless"
    cases = [_run(report, subject), *(_case(finding, report, subject, style) for finding in report.findings)]
    failures = sum(brief.level(finding) == "warning" for finding in report.findings)
    errors = int(_broken(report))
    head = (
        f'  <testsuite name={_attribute(f"gapless {subject}")} tests="{len(cases)}" '
        f'failures="{failures}" errors="{errors}" skipped="0">'
    )
    said = "\n".join([*brief.verdict(report, style), *brief.remarks(report)])
    return "\n".join([head, *cases, f"    <system-out>{_content(said)}</system-out>", "  </testsuite>"])


def _broken(report: Report) -> bool:
    """Whether an error ended the run, not the user or Gapless."""
    return report.ending.how in ("error", "not-emulated")


def _run(report: Report, subject: str) -> str:
    """Return the test case that passes if the script ran."""
    head = f'    <testcase classname={_attribute(subject)} name="runs"'
    if not _broken(report):
        return f"{head}/>"
    message = brief.portable(report.ending.message)
    error = f"<error type={_attribute(report.ending.how)} message={_attribute(message)}/>"
    return f"{head}>{error}</testcase>"


def _case(finding: Finding, report: Report, subject: str, style: Style) -> str:
    where = brief.plain(brief.where(finding, style))
    backward = " (backward)" if finding.backward else ""
    name = f"{finding.code} {finding.name} at {where}{backward}"
    place = ""
    if finding.line is not None and brief.in_repository(finding.line, style):
        file = brief.shown_path(finding.line, style)
        place = f' file={_attribute(file)} line="{max(finding.line.line, 1)}"'
    head = f"    <testcase classname={_attribute(subject)} name={_attribute(name)}{place}>"
    message = brief.message(finding, report)
    if brief.level(finding) == "note":
        return f"{head}<system-out>{_content(message)}</system-out></testcase>"
    often = words.weight(finding, report) or finding.name
    summary = f"{where}: {often}"
    body = "\n".join(filter(None, [summary, brief.plain(finding.line.code) if finding.line else "", message]))
    failure = (
        f"<failure type={_attribute(finding.code)} message={_attribute(summary)}>{_content(body)}</failure>"
    )
    return f"{head}{failure}</testcase>"


def _valid(text: str) -> str:
    """Return `text` with characters that XML cannot hold, or that control a terminal, escaped."""
    return "".join(c if c in "\t\n\r" or c.isprintable() else repr(c)[1:-1] for c in text)


def _content(text: str) -> str:
    return escape(_valid(text), {"\r": "&#13;", "\t": "&#9;"})


def _attribute(text: str) -> str:
    return quoteattr(_valid(text), {"\n": "&#10;", "\r": "&#13;", "\t": "&#9;"})
