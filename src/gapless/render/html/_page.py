"""A page put together: what it shows, its style, and the scripts that make it move."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

import gapless
from gapless.model import Profile, Report, Site
from gapless.model.comparison import Comparison
from gapless.model.wording import count
from gapless.render import _words as words
from gapless.render._style import Style
from gapless.render.html import _compared as compared
from gapless.render.html import _findings as findings
from gapless.render.html import _margin as margin
from gapless.render.html import _overview as overview
from gapless.render.html._clean import Clean
from gapless.render.html._source import Sources

_HERE = Path(__file__).parent
_SCRIPTS = ("timeline.js", "page.js")
_NEVER_IN_SCRIPTS = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def page(report: Report, style: Style) -> str:
    """`report` as one HTML document."""
    clean = Clean(style)
    sources = Sources(style.folder, clean.homes)
    views = findings.views(report, clean, sources)
    profile = report.profile
    lanes = profile.lanes if profile is not None else None
    shown = {
        "title": report.sentence,
        "report": report,
        "facts": overview.facts(report, clean),
        "views": views,
        "families": {
            key: findings.FAMILIES[key]
            for key in sorted({one["family"] for one in views})
            if key in findings.FAMILIES
        },
        "libraries": sorted({one["library"] for one in views} - {""}),
        "rules": findings.rules(report.findings),
        "files": margin.files(report, views, sources, clean),
        "ending": words.ending(report),
        "meaning": words.meaning(report.steps) if profile is None and report.steps.most else "",
        "profile": profile,
        "lanes": lanes,
        **(_of_profile(report, profile, views, clean) if profile is not None else _of_check(report, views)),
    }
    return _filled("report.html", shown, clean, _data(profile, report, views) if profile and lanes else None)


def comparison(made: Comparison, style: Style) -> str:
    """`made` as one HTML document."""
    clean = Clean(style)
    rows = compared.findings(made, clean)
    same = len(made.findings) - len(rows)
    shown = {
        "title": made.sentence,
        "made": made,
        "sides": compared.sides(made, clean),
        "tables": compared.tables(made, clean),
        "rows": rows,
        "same": count(same, "finding") if same else "",
    }
    return _filled("comparison.html", shown, clean, None)


def _of_profile(
    report: Report, profile: Profile, views: list[dict[str, Any]], clean: Clean
) -> dict[str, Any]:
    total = profile.steps.total
    return {
        "split": overview.split(profile),
        "idle": overview.idle(profile),
        "idle_share": f"{100 * profile.idle / total:.1f}" if total else "0",
        "tiles": overview.tiles(profile),
        "strip": overview.strip(profile),
        "asked": overview.asked(profile.prices),
        "order": overview.order(report, views),
        "ranks": overview.ranks(report.ranks, clean),
        "tables": overview.tables(profile, clean),
        "marked": profile.steps.count > 1,
        "stacks": profile.recording.stacks,
    }


def _of_check(report: Report, views: list[dict[str, Any]]) -> dict[str, Any]:
    return {"waits": overview.waits(report, views), "estimate": overview.estimate(report)}


def _data(profile: Profile, report: Report, views: list[dict[str, Any]]) -> dict[str, Any]:
    """What the timeline draws."""
    found = [{key: view[key] for key in ("id", "code", "name", "where", "start", "end")} for view in views]
    sites: dict[tuple[Site, str], int] = {}
    for number, one in enumerate(report.findings):
        for site in one.sites:
            sites.setdefault((site, "" if site.stack else one.place), number)
            sites.setdefault((site, ""), number)
    waits: dict[int, int] = {}
    for position, cost in enumerate(profile.costs):
        if cost.cause == "wait":
            at = sites.get((cost.site, "" if cost.site.stack else cost.place))
            waits[position] = sites.get((cost.site, ""), -1) if at is None else at
    return {
        "lanes": profile.lanes,
        "span": [0, profile.span],
        "steps": {"start": profile.steps.start, "end": profile.steps.end, "names": profile.steps.names},
        "memory": {
            "time": profile.memory.time,
            "allocated": profile.memory.allocated,
            "reserved": profile.memory.reserved,
        },
        "findings": found,
        "waits": {str(position): number for position, number in waits.items()},
        "causes": overview.CAUSES,
    }


def _filled(template: str, shown: dict[str, Any], clean: Clean, data: dict[str, Any] | None) -> str:
    scripts = [_asset(name) for name in _SCRIPTS]
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    made = (
        _environment(clean)
        .get_template(template)
        .render(
            **shown,
            css=Markup(_asset("style.css")),
            scripts=[Markup(script) for script in scripts],
            policy=Markup(
                f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {hashes}"
            ),
            data=Markup(_json(clean.whole(data))) if data is not None else "",
            version=gapless.__version__,
        )
    )
    return made if made.endswith("\n") else made + "\n"


def _environment(clean: Clean) -> jinja2.Environment:
    """Whatever is text and no markup of ours is cleaned and escaped, wherever it stands."""

    def final(value: Any) -> Any:
        return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        finalize=final,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = lambda text: _prose(clean(text))
    return environment


def _prose(text: str) -> Markup:
    """Text with what stands between backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    marked = (
        Markup("<code>{}</code>").format(part) if n % 2 else escape(part) for n, part in enumerate(parts)
    )
    return Markup("").join(marked)


@cache
def _asset(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _json(value: Any) -> str:
    """JSON that can stand in a script element: nothing in it ends that, or begins another."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.translate(_NEVER_IN_SCRIPTS)
