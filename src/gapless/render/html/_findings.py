"""Findings as a page shows them."""

from __future__ import annotations

import re
from typing import Any

from gapless.model import Finding, Report, SourceLine
from gapless.model.wording import count, duration, percent
from gapless.render import _words as words
from gapless.render.html._clean import Clean
from gapless.render.html._source import Sources
from gapless.rules import rule
from gapless.rules._places import deciding_frame, short_path

FAMILIES = {
    "1": "host waits",
    "2": "metrics and collectives",
    "3": "input",
    "4": "memory",
    "5": "launches",
    "6": "communication",
    "7": "measuring",
}
_MATTERS = 0.005
_OPEN = 5
"""Findings that are shown unfolded from the start, at most."""
_DEEP = ((8, 4, 40), (50, 1, 20))
"""The first findings are told with so many stacks of so many frames; the others with `_SHALLOW`: pages are
for reading, and for sending."""
_SHALLOW = (1, 4)
_WIDE = 160


def anchors(findings: tuple[Finding, ...], clean: Clean, prefix: str = "") -> list[str]:
    """For each finding the name it is linked by: ``GAP112-train.py-42``, behind `prefix`."""
    made: list[str] = []
    for one in findings:
        place = f"{clean.path(one.line.file)}-{one.line.line}" if one.line else clean(one.place)
        if one.line and not one.line.is_user:
            place = short_path(one.line).replace(":", "-")
        name = re.sub(r"[^\w./-]+", "-", f"{one.code}-{place}", flags=re.ASCII)[:120].strip("-")
        twins = sum(other == name or other.startswith(f"{name}~") for other in made)
        made.append(f"{name}~{twins + 1}" if twins else name)
    return [prefix + name for name in made]


def views(report: Report, clean: Clean, sources: Sources, prefix: str = "") -> list[dict[str, Any]]:
    """One dictionary for each finding, in order."""
    names = anchors(report.findings, clean, prefix)
    largest = max((_weight(one, report) for one in report.findings), default=0.0)
    advised: dict[str, str] = {}
    found = []
    for number, (one, name) in enumerate(zip(report.findings, names, strict=True)):
        first = advised.setdefault(one.remedy, name)
        found.append(
            {
                "id": name,
                "code": one.code,
                "name": one.name,
                "family": one.code[3:4],
                "library": _library(one),
                "where": _where(one, clean),
                "function": one.line.function if one.line and one.line.function != "<module>" else "",
                "backward": one.backward,
                "cost": cost(one, report),
                "bar": 100 * _weight(one, report) / largest if largest else 0.0,
                "matters": matters(one),
                "open": number < _OPEN and matters(one),
                "code_lines": _marked(one.line, sources),
                "decides": _decides(one, clean),
                "rows": list(_rows(one, report)),
                "remedy": one.remedy,
                "as_for": first if first != name else "",
                "stacks": _stacks(one, clean, *_depth(number)),
                "start": one.loss.start if one.loss and one.loss.end else -1,
                "end": one.loss.end if one.loss else -1,
                "rank": one.loss.rank if one.loss else -1,
            }
        )
    return found


def matters(one: Finding) -> bool:
    """Whether it is worth a look before it is asked for: the same as in the text."""
    if one.loss is None:
        return one.frequency.when in ("every-step", "some-steps", "no-steps")
    return not (one.loss.idle or one.loss.blocked) or one.loss.share >= _MATTERS


def _weight(one: Finding, report: Report) -> float:
    return float(one.loss.share) if one.loss else float(one.frequency.per_step)


def cost(one: Finding, report: Report) -> str:
    """What it costs, in a few words."""
    if one.loss is None:
        return words.often(one.frequency, report.steps.steady)
    if not (one.loss.idle or one.loss.blocked):
        return ""
    if one.loss.share < 0.0005:
        return "GPU idles under 0.1 %"
    steps = report.profile.steps.count if report.profile else 1
    each = "" if steps < 2 else " a step"
    return f"GPU idles {percent(one.loss.share)}, {duration(one.loss.idle / max(steps, 1))}{each}"


def _library(one: Finding) -> str:
    """Whose code waits."""
    decides = deciding_frame(one.sites[0]) if one.sites else None
    line = decides or one.line
    return "" if line is None or line.is_user else line.library


def _where(one: Finding, clean: Clean) -> str:
    if one.line is None:
        return one.place
    if not one.line.is_user:
        return short_path(one.line)
    return f"{clean.path(one.line.file)}:{one.line.line}"


def _marked(line: SourceLine | None, sources: Sources) -> list[dict[str, Any]]:
    if line is None:
        return []
    return [{"n": n, "text": text, "hit": n == line.line} for n, text in sources.around(line)]


def _decides(one: Finding, clean: Clean) -> dict[str, Any] | None:
    frame = deciding_frame(one.sites[0]) if one.sites else None
    if frame is None or frame == one.line:
        return None
    return {"where": short_path(frame), "function": frame.function, "code": frame.code}


def _rows(one: Finding, report: Report) -> list[tuple[str, list[str]]]:
    """Labels and what stands behind them."""
    rows: list[tuple[str, list[str]]] = []
    if one.evidence:
        rows.append(("seen", list(one.evidence)))
    price, profile = one.price, report.profile
    if price is not None and price.estimated:
        if report.estimate is not None:
            rows.append(("costs", [words.estimated(price, report.estimate)]))
    elif price is not None and price.waits and profile is not None and profile.prices is not None:
        prices = profile.prices
        told = words.price(price, 0 if prices.reasons else prices.span)
        rows.append(("saves", told))
    if one.loss is None and one.frequency.total:
        rows.append(("seen", [f"{count(one.frequency.total, 'wait')} in the whole run"]))
    if one.operators and any(site.mechanism != "none" for site in one.sites):
        rows.append(("waits", [words.operators(one)]))
    return rows


def _depth(number: int) -> tuple[int, int]:
    """How many stacks the finding at this position is told with, and how many frames of each."""
    return next(((stacks, frames) for most, stacks, frames in _DEEP if number < most), _SHALLOW)


def _stacks(one: Finding, clean: Clean, most: int, deep: int) -> list[dict[str, Any]]:
    """The distinct stacks below the finding, innermost call last, as tracebacks have them."""
    found: list[dict[str, Any]] = []
    seen: set[object] = set()
    for site in one.sites:
        for kind, stack in (("", site.stack), ("forward call", site.forward)):
            if not stack or (kind, stack) in seen or len(found) >= most:
                continue
            seen.add((kind, stack))
            frames = [
                {
                    "where": f"{clean.path(frame.file)}:{frame.line}" if frame.is_user else short_path(frame),
                    "function": frame.function,
                    "code": frame.code[:_WIDE],
                    "user": frame.is_user,
                }
                for frame in reversed(stack[:deep])
            ]
            found.append(
                {"what": " · ".join(part for part in (site.operator, kind) if part), "frames": frames}
            )
    return found


def rules(findings: tuple[Finding, ...]) -> list[dict[str, Any]]:
    """What the rules that were met mean, by code."""
    found = []
    for code in sorted({one.code for one in findings}):
        one = rule(code)
        sections = [(title, _blocks(text)) for title, text in one.sections().items()]
        found.append({"code": code, "name": one.name, "summary": one.summary(), "sections": sections})
    return found


def _blocks(text: str) -> list[tuple[str, str]]:
    """Paragraphs and code of a rule's documentation: ``("p", text)`` or ``("pre", text)``."""
    blocks: list[tuple[str, str]] = []
    for position, part in enumerate(re.split(r"```(?:\w+\n)?", text)):
        if position % 2:
            blocks.append(("pre", part.strip("\n")))
        else:
            blocks += [("p", " ".join(one.split())) for one in part.split("\n\n") if one.strip()]
    return blocks
