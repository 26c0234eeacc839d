"""Render the report as SARIF 2.1.0, which code scanning services and editors read."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import quote

from gapless._version import __version__
from gapless.model import Finding, Report, Rule, SourceLine
from gapless.render import _brief as brief
from gapless.render._style import Style
from gapless.render.json import dump, plain
from gapless.rules import all_rules

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
FINGERPRINT = "gaplessFinding/v1"
ROOT = "%SRCROOT%"

Json = dict[str, Any]


def render(report: Report, style: Style) -> str:
    """Render `report` as a SARIF log with one run. Paths are relative to the root of the repository."""
    return together([report], style)


def together(reports: Sequence[Report], style: Style) -> str:
    """Render several reports as one log, a run for each."""
    runs = [_run(report, style) for report in reports]
    for number, run in enumerate(runs[1:], 2):  # services take each category once
        run["automationDetails"]["id"] += f"{number}/"
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": runs}
    return dump(plain(log), style, indent=1)


def _run(report: Report, style: Style) -> Json:
    rules = [rule for rule in all_rules() if any(finding.code == rule.code for finding in report.findings)]
    numbers = {rule.code: number for number, rule in enumerate(rules)}
    prints = fingerprints(report.findings, style)
    return {
        "tool": {
            "driver": {
                "name": "Gapless",
                "semanticVersion": __version__,
                "version": __version__,
                "rules": [_rule(rule) for rule in rules],
            }
        },
        "automationDetails": {"id": f"gapless/{brief.subject(report, style)}/"},
        "originalUriBaseIds": {ROOT: {"description": {"text": "The root of the repository."}}},
        "invocations": [_invocation(report)],
        "results": [
            _result(finding, numbers, mark, report, style)
            for finding, mark in zip(report.findings, prints, strict=True)
        ],
        "columnKind": "unicodeCodePoints",
        "properties": {"verdict": brief.verdict(report, style)},
    }


def _invocation(report: Report) -> Json:
    ended = report.ending.how not in ("error", "not-emulated", "interrupted")
    return {
        "executionSuccessful": ended and not report.ending.status,
        "toolExecutionNotifications": [
            {"level": "note", "message": {"text": text}} for text in brief.remarks(report)
        ],
    }


def _rule(rule: Rule) -> Json:
    sections = rule.sections()
    help_text = "\n\n".join(f"{title}\n{text}" for title, text in sections.items())
    markdown = "\n\n".join(f"## {title}\n\n{text}" for title, text in sections.items())
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary()},
        "fullDescription": {"text": sections.get("What waits", "") or rule.summary()},
        "help": {"text": help_text or rule.summary(), "markdown": markdown or rule.summary()},
        "defaultConfiguration": {"level": "warning"},
        "properties": {
            "tags": ["performance", "gpu"],
            "precision": "high",
            "problem.severity": "warning",
        },
    }


def _result(finding: Finding, numbers: dict[str, int], mark: str, report: Report, style: Style) -> Json:
    result: Json = {
        "ruleId": finding.code,
        "level": brief.level(finding),
        "message": {"text": _message(finding, report, style)},
        "locations": [_location(finding, report, style)],
        "partialFingerprints": {FINGERPRINT: mark},
    }
    if finding.code in numbers:
        result["ruleIndex"] = numbers[finding.code]
    further = [line for line in finding.lines[1:] if brief.in_repository(line, style)]
    if further:
        result["relatedLocations"] = [
            {"id": n, "message": {"text": "The same change fixes this line"}, **_place(line, style)}
            for n, line in enumerate(further, 1)
        ]
    if finding.library_stack:
        result["stacks"] = [_stack(finding, style)]
    if change := _change(finding, report, style):
        result["fixes"] = [change]
    result["properties"] = {
        "when": finding.frequency.when,
        "waitsPerStep": finding.frequency.per_step,
        "totalWaits": finding.frequency.total,
    }
    return result


def _change(finding: Finding, report: Report, style: Style) -> Json | None:
    """Return all edits for a finding's lines as one fix, since several would be alternatives; None if none.

    Only those that change at most last bits are offered.
    """
    lines = {(line.file, line.line) for line in finding.lines}
    fixes = [
        fix
        for fix in report.fixes
        if fix.edits and fix.level in ("exact", "rounding") and fix.code == finding.code
        if (fix.line.file, fix.line.line) in lines
    ]
    edits = sorted({edit for fix in fixes for edit in fix.edits})
    if not edits or any(first.overlaps(second) for first, second in pairwise(edits)):
        return None
    changes: dict[str, list[Json]] = {}
    for edit in edits:
        region = {"byteOffset": edit.start, "byteLength": edit.end - edit.start}
        content = {"text": edit.text}
        changes.setdefault(edit.file, []).append({"deletedRegion": region, "insertedContent": content})
    places = {file: SourceLine(f"{report.project}/{file}", 1) for file in changes}
    return {
        "description": {"text": "; ".join(dict.fromkeys(fix.title for fix in fixes))},
        "artifactChanges": [
            {
                "artifactLocation": _artifact(
                    brief.shown_path(places[file], style), brief.in_repository(places[file], style)
                ),
                "replacements": replacements,
            }
            for file, replacements in changes.items()
        ],
    }


def _message(finding: Finding, report: Report, style: Style) -> str:
    text = brief.message(finding, report)
    return (
        text
        if brief.in_repository(finding.line, style)
        else f"{brief.plain(brief.where(finding, style))}: {text}"
    )


def _location(finding: Finding, report: Report, style: Style) -> Json:
    """Return the finding's line in the repository, else the script: results need some place."""
    if finding.line is None or not brief.in_repository(finding.line, style):
        name = brief.subject(report, style) or "gapless"
        return {"physicalLocation": {"artifactLocation": _artifact(name, True), "region": {"startLine": 1}}}
    return _place(finding.line, style)


def _place(line: SourceLine, style: Style) -> Json:
    region: Json = {"startLine": max(line.line, 1)}
    if line.code:
        region["snippet"] = {"text": line.code}
    file = _artifact(brief.shown_path(line, style), brief.in_repository(line, style))
    location: Json = {"physicalLocation": {"artifactLocation": file, "region": region}}
    if line.function:
        location["logicalLocations"] = [{"name": line.function, "kind": "function"}]
    return location


def _artifact(name: str, ours: bool) -> Json:
    uri = quote(plain(name).lstrip("/"), safe="/-_.~")
    return {"uri": uri, "uriBaseId": ROOT} if ours else {"uri": uri}


def _stack(finding: Finding, style: Style) -> Json:
    frames = [{"location": _place(line, style)} for line in reversed(list(brief.call_path(finding)))]
    return {"message": {"text": "from the wait to the line that leads to it"}, "frames": frames}


def fingerprints(findings: Sequence[Finding], style: Style) -> list[str]:
    """Return a hash per finding of what stays when its line moves: rule, file, function, code, direction.

    Findings equal in all of these are numbered in the order of their lines.
    """
    keys = [_key(finding, style) for finding in findings]
    order = sorted(range(len(findings)), key=lambda at: (findings[at].line or SourceLine("", 0)).line)
    repeats: Counter[tuple[str, ...]] = Counter()
    marks = [""] * len(findings)
    for at in order:
        text = "\0".join((*keys[at], str(repeats[keys[at]])))
        repeats[keys[at]] += 1
        marks[at] = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]
    return marks


def _key(finding: Finding, style: Style) -> tuple[str, ...]:
    line = finding.line
    if line is None:
        return (finding.code, finding.place)
    code = " ".join(line.code.split()) or str(line.line)
    return (
        finding.code,
        brief.shown_path(line, style),
        line.function,
        code,
        "backward" if finding.backward else "",
    )
