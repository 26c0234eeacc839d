"""A page put together: what it shows, its style, and the scripts that make it move."""

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
from gapless.model import Profile, Report, Site
from gapless.model.comparison import Comparison
from gapless.model.loading import Diagnosis
from gapless.model.memory import MemoryReport
from gapless.model.wording import count
from gapless.render import _words as words
from gapless.render._style import Style
from gapless.render.html import _compared as compared
from gapless.render.html import _findings as findings
from gapless.render.html import _loader as loader
from gapless.render.html import _margin as margin
from gapless.render.html import _memory as remembered
from gapless.render.html import _overview as overview
from gapless.render.html import _runs as runs
from gapless.render.html._clean import Clean
from gapless.render.html._source import Sources

_HERE = Path(__file__).parent
_STAGED = ("timeline.js", "memory.js")
"""What draws on a stage, each its own kind of thing."""
_NEVER_IN_SCRIPTS = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def page(report: Report, style: Style) -> str:
    """`report` as one HTML document."""
    body = _run(report, Clean(style), style)
    return _filled("report.html", {**body, "title": report.sentence}, Clean(style), body["scripts"])


def pages(reports: Sequence[Report], style: Style) -> str:
    """Several runs as one HTML document: a list of them, and each in a part of its own."""
    clean = Clean(style)
    head = runs.columns(reports)
    shown = []
    for number, (report, row) in enumerate(zip(reports, runs.rows(reports, head, clean), strict=True), 1):
        body = _run(report, clean, style, f"run{number}-", "h2")
        shown.append({**body, **row, "id": f"run{number}"})
    nav = [("runs", "Runs"), *((one["id"], one["name"]) for one in shown)]
    scripts = tuple(name for name in _STAGED if any(name in one["scripts"] for one in shown))
    title = runs.title(reports)
    return _filled("runs.html", {"title": title, "nav": nav, "runs": shown, "head": head}, clean, scripts)


def diagnosis(made: Diagnosis, style: Style) -> str:
    """A diagnosis of a loader as one HTML document."""
    clean = Clean(style)
    shown = loader.shown(made, clean, Sources(style.folder, clean.homes))
    return _filled("loader.html", shown, clean, ())


def memory(made: MemoryReport, style: Style) -> str:
    """What replaying a run's memory says, as one HTML document."""
    report = Report(sentence=made.sentence, findings=made.findings, notes=made.notes, memory=(made,))
    return page(report, style)


def comparison(made: Comparison, style: Style) -> str:
    """`made` as one HTML document."""
    clean = Clean(style)
    rows = compared.findings(made, clean)
    same = len(made.findings) - len(rows)
    compared_tables = compared.tables(made, clean)
    shown = {
        "title": made.sentence,
        "made": made,
        "sides": compared.sides(made, clean),
        "tables": compared_tables,
        "rows": rows,
        "same": count(same, "finding") if same else "",
        "nav": [("findings", "Findings")] * bool(rows)
        + [(one["id"], one["title"].split(",")[0]) for one in compared_tables],
    }
    return _filled("comparison.html", shown, clean, ())


def _run(report: Report, clean: Clean, style: Style, prefix: str = "", heading: str = "h1") -> dict[str, Any]:
    """All that is told of one run, as markup; what there is to go to in it, and the scripts it needs.

    Names of places in it begin with `prefix`.
    """
    sources = Sources(style.folder, clean.homes)
    views = findings.views(report, clean, sources, prefix)
    profile = report.profile
    lanes = profile.lanes if profile is not None else None
    several = len(report.memory) > 1
    memories = [
        remembered.picture(one, f"{prefix}memory{one.device if several else ''}", clean, sources, several)
        for one in report.memory
    ]
    drawn = [one for one in memories if one["data"] is not None]
    for one in drawn:
        one["data"] = Markup(_json(clean.whole(one["data"])))
    shown = {
        "p": prefix,
        "heading": heading,
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
        "memory": memories,
        "advice": [one for one in map(remembered.advice, report.memory) if one is not None],
        "timeline_data": Markup(_json(clean.whole(_data(profile, report, views))))
        if profile and lanes
        else "",
        **(_of_profile(report, profile, views, clean) if profile is not None else _of_check(report, views)),
    }
    return {
        "nav": _nav(shown, prefix),
        "body": Markup(_environment(clean).get_template("run.html").render(shown)),
        "scripts": (*(["timeline.js"] if lanes else []), *(["memory.js"] if drawn else [])),
    }


def _nav(shown: dict[str, Any], prefix: str) -> list[tuple[str, str]]:
    """The parts that are there."""
    parts = [
        ("step", "Step", shown["profile"] or shown.get("waits")),
        *((one["id"].removeprefix(prefix), one["title"], True) for one in shown["memory"]),
        ("findings", "Findings", shown["views"]),
        ("timeline", "Timeline", shown["profile"]),
        ("ranks", "Ranks", shown.get("ranks")),
        ("source", "Source", shown["files"]),
        ("numbers", "Numbers", shown.get("tables")),
        ("rules", "Rules", shown["rules"]),
    ]
    return [(prefix + name, title) for name, title, there in parts if there]


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
    if not report.steps.seen and not report.environment.torch and report.memory:
        return {"waits": None, "estimate": []}  # memory alone
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
        "causes": words.CAUSES,
    }


def _filled(template: str, shown: dict[str, Any], clean: Clean, drawn: Sequence[str]) -> str:
    """`template` with its scripts: those that draw, and the one that moves the page."""
    names = [*(["stage.js"] if drawn else []), *drawn, "page.js"]
    scripts = [_asset(name) for name in names]
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    made = (
        _environment(clean)
        .get_template(template)
        .render(
            **{key: value for key, value in shown.items() if key != "scripts"},
            css=Markup(_asset("style.css")),
            scripts=[Markup(script) for script in scripts],
            policy=Markup(
                f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {hashes}"
            ),
            version=__version__,
        )
    )
    return made if made.endswith("\n") else made + "\n"


class _Compiled(jinja2.BytecodeCache):
    """Templates stay compiled: each run on a page has an environment of its own, and the same templates."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self._kept:
            bucket.bytecode_from_string(self._kept[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._kept[bucket.key] = bucket.bytecode_to_string()


_COMPILED = _Compiled()


def _environment(clean: Clean) -> jinja2.Environment:
    """Whatever is text and no markup of ours is cleaned and escaped, wherever it stands."""

    def final(value: Any) -> Any:
        return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        bytecode_cache=_COMPILED,
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
