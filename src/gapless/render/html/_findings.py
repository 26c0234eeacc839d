"""Prepare findings for the page's template."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from markupsafe import Markup

from gapless.model import Finding, Report, SourceLine
from gapless.model.finding import Spot
from gapless.model.wording import count
from gapless.render import _brief as brief
from gapless.render import _words as words
from gapless.render.html._clean import Clean
from gapless.render.html._source import Sources
from gapless.rules import rule
from gapless.rules._places import deciding_frame, short_path

FAMILIES = {
    "1": "syncs",
    "2": "metrics and collectives",
    "3": "input",
    "4": "memory",
    "5": "launches",
    "6": "communication",
    "7": "measuring",
}
_MAX_UNFOLDED = 5
"""Findings shown unfolded from the start, of those that cost training steps."""
_STACK_LIMITS = ((8, 4, 40), (50, 1, 20))
"""Number of findings, and the stacks and frames shown of each up to there: pages must stay small to send."""
_LAST_STACK_LIMIT = (1, 4)
"""Stacks and frames shown of each later finding."""
_MAX_CODE_LENGTH = 160
"""Characters shown of a frame's code."""
_MAX_FILES_SHOWN, _MAX_SPOTS_SHOWN = 3, 12
"""Files and lines shown of one finding: enough to recognise the pattern."""


def anchors(findings: tuple[Finding, ...], clean: Clean, prefix: str = "") -> list[str]:
    """Return each finding's id for links, such as ``GAP112-train.py-42``, after `prefix`."""
    names: list[str] = []
    for finding in findings:
        place = (
            f"{clean.path(finding.line.file)}-{finding.line.line}" if finding.line else clean(finding.place)
        )
        if finding.line and not finding.line.is_user:
            place = short_path(finding.line).replace(":", "-")
        name = re.sub(r"[^\w./-]+", "-", f"{finding.code}-{place}", flags=re.ASCII)[:120].strip("-")
        twins = sum(other == name or other.startswith(f"{name}~") for other in names)
        names.append(f"{name}~{twins + 1}" if twins else name)
    return [prefix + name for name in names]


def views(report: Report, clean: Clean, sources: Sources, prefix: str = "") -> list[dict[str, Any]]:
    """Return the template's dictionary of each finding, in order."""
    names = anchors(report.findings, clean, prefix)
    largest = max((_weight(finding, report) for finding in report.findings), default=0.0)
    advised: dict[str, str] = {}
    rows = []
    for number, (finding, name) in enumerate(zip(report.findings, names, strict=True)):
        first = advised.setdefault(finding.remedy, name)
        saving = words.saving(finding, report)
        matters = brief.level(finding) == "warning"
        rows.append(
            {
                "id": name,
                "code": finding.code,
                "name": finding.name,
                "family": finding.code[3:4],
                "library": _library(finding),
                "where": _where(finding, clean),
                "function": finding.line.function
                if finding.line and finding.line.function != "<module>"
                else "",
                "backward": finding.backward and not finding.spots,
                "cost": words.weight(finding, report),
                "saves": saving[0] if saving else "",
                "bar": 100 * _weight(finding, report) / largest if largest else 0.0,
                "matters": matters,
                "open": number < _MAX_UNFOLDED and matters,
                "blocks": _blocks_of(finding, clean, sources),
                "decides": _deciding_call(finding, clean),
                "rows": list(_rows(finding, clean, saving[1:])),
                "remedy": finding.remedy,
                "as_for": first if first != name else "",
                "stacks": _stacks(finding, clean, *_stack_limit(number)),
                "start": finding.loss.start if finding.loss and finding.loss.end else -1,
                "end": finding.loss.end if finding.loss else -1,
                "rank": finding.loss.rank if finding.loss else -1,
            }
        )
    return rows


def families(views: list[dict[str, Any]]) -> dict[str, str]:
    """Return the rule families of the findings: digit and name."""
    present = {view["family"] for view in views}
    return {key: name for key, name in FAMILIES.items() if key in present}


def _weight(finding: Finding, report: Report) -> float:
    """Return what the bar shows: the share of idle GPU time, else a step's saving, else waits per step."""
    if finding.loss is not None:
        return float(finding.loss.share)
    if report.estimate is not None and finding.price is not None:
        return float(finding.price.last)
    return float(finding.frequency.per_step)


def _library(finding: Finding) -> str:
    """Return the library whose code waits; "" if it is the user's."""
    decides = deciding_frame(finding.sites[0]) if finding.sites else None
    line = decides or finding.line
    return "" if line is None or line.is_user else line.library


def _where(finding: Finding, clean: Clean) -> str:
    """Return ``train.py:60–62``; if several files, the first, and the number of lines in the others."""
    if finding.line is None:
        return finding.place
    if not finding.line.is_user:
        return short_path(finding.line)
    own = sorted(line.line for line in finding.lines if line.file == finding.line.file)
    other_count = len(finding.lines) - len(own)
    more = f" and {count(other_count, 'more line')}" if other_count else ""
    return f"{clean.path(finding.line.file)}:{brief.numbers(own)}{more}"


def _blocks_of(finding: Finding, clean: Clean, sources: Sources) -> list[dict[str, Any]]:
    """Return the source around each of the finding's lines, file by file; line 0 marks a gap."""
    lines: dict[str, dict[int, SourceLine]] = {}
    for line in [spot.line for spot in finding.spots] or ([finding.line] if finding.line is not None else []):
        lines.setdefault(line.file, {}).setdefault(line.line, line)
    blocks = []
    for file, hits in list(lines.items())[:_MAX_FILES_SHOWN]:
        text: dict[int, Markup] = {}
        for line in list(hits.values())[:_MAX_SPOTS_SHOWN]:
            text.update(sources.around(line))
        rows: list[dict[str, Any]] = []
        for n in sorted(text):
            if rows and rows[-1]["n"] != n - 1:
                rows.append({"n": 0, "text": "", "hit": False})
            rows.append({"n": n, "text": text[n], "hit": n in hits})
        if rows:
            blocks.append({"file": clean.path(file) if len(lines) > 1 else "", "rows": rows})
    return blocks


def _deciding_call(finding: Finding, clean: Clean) -> dict[str, Any] | None:
    frame = deciding_frame(finding.sites[0]) if finding.sites else None
    if frame is None or frame == finding.line:
        return None
    return {"where": short_path(frame), "function": frame.function, "code": frame.code}


def _rows(finding: Finding, clean: Clean, more: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield labels with their texts; `more` are further texts about the saving."""
    total = finding.frequency.total if finding.loss is None else 0
    in_all = [f"{count(total, 'sync')} in the whole run"] if total else []
    rows = (
        ("called", words.callers(finding, clean.path)),
        (
            "lines",
            [_spot(spot, clean) for spot in finding.spots[:_MAX_SPOTS_SHOWN]]
            if len(finding.spots) > 1
            else [],
        ),
        ("seen", [*finding.evidence, *in_all]),
        ("saves", more),
        ("waits", [text for text in (brief.waits(finding),) if text]),
    )
    yield from ((label, values) for label, values in rows if values)


def _spot(spot: Spot, clean: Clean) -> str:
    backward = "backward of " if spot.backward else ""
    remedy = f": {spot.remedy}" if spot.remedy else ""
    return f"{words.times(spot.waits)} {backward}{clean.path(spot.line.file)}:{spot.line.line}{remedy}"


def _stack_limit(number: int) -> tuple[int, int]:
    """Return how many stacks, and frames of each, are shown of finding `number`."""
    return next(
        ((stacks, frames) for most, stacks, frames in _STACK_LIMITS if number < most), _LAST_STACK_LIMIT
    )


def _stacks(finding: Finding, clean: Clean, most: int, deep: int) -> list[dict[str, Any]]:
    """Return at most `most` distinct stacks of `deep` frames, innermost call last, as in tracebacks."""
    views: list[dict[str, Any]] = []
    known_stacks: set[object] = set()
    for site in finding.sites:
        for kind, stack in (("", site.stack), ("forward call", site.forward)):
            if not stack or (kind, stack) in known_stacks or len(views) >= most:
                continue
            known_stacks.add((kind, stack))
            frames = [
                {
                    "where": f"{clean.path(frame.file)}:{frame.line}" if frame.is_user else short_path(frame),
                    "function": frame.function,
                    "code": frame.code[:_MAX_CODE_LENGTH],
                    "user": frame.is_user,
                }
                for frame in reversed(stack[:deep])
            ]
            views.append(
                {"what": " · ".join(part for part in (site.operator, kind) if part), "frames": frames}
            )
    return views


def rules(findings: tuple[Finding, ...]) -> list[dict[str, Any]]:
    """Return the documentation of each rule among the findings, by code."""
    documents = []
    for code in sorted({finding.code for finding in findings}):
        met_rule = rule(code)
        sections = [(title, _blocks(text)) for title, text in met_rule.sections().items()]
        documents.append(
            {"code": code, "name": met_rule.name, "summary": met_rule.summary(), "sections": sections}
        )
    return documents


def _blocks(text: str) -> list[tuple[str, str]]:
    """Split a rule's documentation into paragraphs ``("p", text)`` and code ``("pre", text)``."""
    blocks: list[tuple[str, str]] = []
    for position, part in enumerate(re.split(r"```(?:\w+\n)?", text)):
        if position % 2:
            blocks.append(("pre", part.strip("\n")))
        else:
            blocks += [
                ("p", " ".join(paragraph.split())) for paragraph in part.split("\n\n") if paragraph.strip()
            ]
    return blocks
