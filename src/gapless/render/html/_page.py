"""Assemble the page: what it shows, its style, and its scripts."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2.bccache import Bucket
from markupsafe import Markup, escape

from gapless._version import __version__
from gapless.model import Report
from gapless.render._brief import effects
from gapless.render._style import Style
from gapless.render.html import _findings as findings
from gapless.render.html import _first as first
from gapless.render.html import _margin as margin
from gapless.render.html import _page_tables
from gapless.render.html import _timeline as timeline
from gapless.render.html import _track as track
from gapless.render.html._clean import Clean
from gapless.render.html._source import Sources

_HERE = Path(__file__).parent
_STAGE_SCRIPTS = ("timeline.js", "memory.js")
"""Scripts that draw on a zoomable stage."""
_ESCAPES_IN_SCRIPTS = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def page(reports: Sequence[Report], style: Style) -> str:
    """Render `reports` as one HTML document: a single one, or several in sections below their summary."""
    clean = Clean(style)
    summary = reports[0] if len(reports) > 1 and reports[0].kind == "runs" else None
    single = reports[0] if len(reports) == 1 else summary
    rest = list(reports) if single is None else list(reports[1:])
    names = _make_unique(_short([clean.path(report.file) for report in rest]))
    runs: list[dict[str, Any]] = []
    for number, (report, name) in enumerate(zip(rest, names, strict=True), 1):
        heading = {
            "id": f"run{number}",
            "name": name,
            "sentence": report.sentence,
            "level": report.verdict.level,
        }
        runs.append({**_run(report, clean, style, f"run{number}-", "h2"), **heading})
    links = {(report.file, 0): run["id"] for report, run in zip(rest, runs, strict=True)}
    top = (
        _run(single, clean, style, links=links)
        if single is not None
        else {"nav": [], "body": "", "scripts": ()}
    )
    title = single.sentence if single is not None else f"{len(rest)} reports"
    drawn = {name for part in (top, *runs) for name in part["scripts"]}
    shown = {
        "title": title,
        "alone": single is not None,
        "nav": [*top["nav"], *((run["id"], run["name"]) for run in runs)],
        "body": top["body"],
        "runs": runs,
    }
    return _fill_document(shown, clean, [name for name in _STAGE_SCRIPTS if name in drawn])


def _short(names: list[str]) -> list[str]:
    """Return paths without the folders that all share."""
    parts = [name.replace("\\", "/").split("/") for name in names]
    shared = 0
    while all(len(path) > shared + 1 and path[shared] == parts[0][shared] for path in parts) and parts:
        shared += 1
    return ["/".join(path[shared:]) for path in parts]


def _make_unique(names: list[str]) -> list[str]:
    """Number names that occur several times."""
    return [
        f"{name} ({names[:at].count(name) + 1})" if names.count(name) > 1 else name
        for at, name in enumerate(names)
    ]


def _run(
    report: Report,
    clean: Clean,
    style: Style,
    prefix: str = "",
    heading: str = "h1",
    links: _page_tables.Links | None = None,
) -> dict[str, Any]:
    """Render one report: its markup, its entries in the navigation, and the scripts it needs.

    Ids begin with `prefix`. `links` map files to ids of other parts of the page.
    """
    sources = Sources(style.folder, clean.hide_homes)
    views = findings.views(report, clean, sources, prefix)
    anchors = [view["id"] for view in views]
    places = {
        (finding.line.file, finding.line.line): name
        for finding, name in zip(report.findings, anchors, strict=True)
        if finding.line
    }
    numbers = _page_tables.views(report.tables, clean, {**places, **(links or {})}, prefix)
    profile = report.profile
    lanes = profile.lanes if profile is not None else None
    peak_tables = (
        table["id"] for table in numbers if any(word in table["title"].lower() for word in ("peak", "failed"))
    )
    peak = next(peak_tables, "")
    memory = track.charts(report, prefix, peak, clean)
    for device in memory:
        device["data"] = Markup(_json(clean.clean_all(device["data"])))
    shown = {
        "p": prefix,
        "heading": heading,
        "report": report,
        "facts": first.facts(report, clean),
        "changes": first.changes(report, anchors, clean),
        "per": effects(report.verdict)[0],
        "strip": first.strip(profile) if profile is not None else None,
        "split": first.split(profile) if profile is not None else [],
        "views": views,
        "families": findings.families(views),
        "libraries": sorted({view["library"] for view in views} - {""}),
        "rules": findings.rules(report.findings),
        "files": margin.files(report, views, sources, clean),
        "before": [table for table in numbers if table["before"]],
        "after": [table for table in numbers if not table["before"]],
        "profile": profile,
        "lanes": lanes,
        "memory": memory,
        "timeline": Markup(_json(clean.clean_all(timeline.data(profile, report, views))))
        if profile and lanes
        else "",
    }
    body = Markup(_environment(clean).get_template("run.html").render(shown))
    scripts = (*(["timeline.js"] if lanes else []), *(["memory.js"] if memory else []))
    return {"nav": _nav(shown, prefix), "body": body, "scripts": scripts}


def _nav(shown: dict[str, Any], prefix: str) -> list[tuple[str, str]]:
    """Return id and title of each section that is shown."""
    parts = [
        ("findings", "Findings", shown["views"]),
        ("timeline", "Timeline", shown["profile"]),
        *((device["id"].removeprefix(prefix), device["title"], True) for device in shown["memory"]),
        ("numbers", "Numbers", shown["after"]),
        ("source", "Source", shown["files"]),
        ("rules", "Rules", shown["rules"]),
    ]
    return [(prefix + name, title) for name, title, is_shown in parts if is_shown]


def _fill_document(shown: dict[str, Any], clean: Clean, drawn: Sequence[str]) -> str:
    """Render the whole document with the scripts `drawn` and the page's own, allowed by their hashes."""
    names = [*(["stage.js"] if drawn else []), *drawn, "page.js"]
    scripts = [_asset(name) for name in names]
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    html = (
        _environment(clean)
        .get_template("report.html")
        .render(
            **shown,
            css=Markup(_asset("style.css")),
            scripts=[Markup(script) for script in scripts],
            policy=Markup(
                f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {hashes}"
            ),
            version=__version__,
        )
    )
    return html if html.endswith("\n") else html + "\n"


class _TemplateCache(jinja2.BytecodeCache):
    """Keeps compiled templates: each report on a page has an environment of its own."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self._kept:
            bucket.bytecode_from_string(self._kept[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._kept[bucket.key] = bucket.bytecode_to_string()


_TEMPLATE_CACHE = _TemplateCache()


def _environment(clean: Clean) -> jinja2.Environment:
    """Return templates in which all text that is not our markup is cleaned and escaped."""

    def final(value: Any) -> Any:
        return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        bytecode_cache=_TEMPLATE_CACHE,
        autoescape=True,
        finalize=final,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = lambda text: _prose(clean(text))
    return environment


def _prose(text: str) -> Markup:
    """Return `text` as markup, with code elements for what is between backticks."""
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
    """Write `value` as JSON for a script element, which nothing in it can close."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.translate(_ESCAPES_IN_SCRIPTS)
