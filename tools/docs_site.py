"""The hook by which mkdocs builds the documentation site: pages made from the code, navigation, links.

``make docs`` runs it. Pages come from three places: ``docs/``, other files of the project (sheets,
changelog), and the code itself (rules, commands, metrics, operations). A page in ``docs/`` that no section
names is listed under "More", so that a new page needs no change here.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).resolve().parent))

import docs_reference  # beside this file

LOG = logging.getLogger("mkdocs.plugins.gapless")
PROJECT = Path(__file__).resolve().parents[1]

COPIES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "sheets/index.md",
    "examples/README.md": "examples.md",
}
"""Files of the project that become pages, and their paths; sheets of the benchmarks do too."""

SECTIONS = {
    "Start": ("index.md", "start.md", "screens.md", "examples.md"),
    "Find": (
        "journeys/segmentation.md",
        "dry.md",
        "races.md",
        "graphs.md",
        "compiled.md",
        "trace.md",
        "profile.md",
        "ranks.md",
        "distributed.md",
        "html.md",
        "integrations.md",
    ),
    "Price": ("price.md",),
    "Fix and prove": (
        "journeys/metrics.md",
        "metrics.md",
        "torchmetrics.md",
        "migration.md",
        "ops.md",
        "compare.md",
    ),
    "Feed": ("journeys/loading.md", "loading.md", "loader.md"),
    "Fit in memory": ("journeys/memory.md", "memory.md"),
    "In CI": ("ci.md", "pytest.md"),
    "How it knows": ("accuracy.md", "emulation.md", "waits.md", "sheets/"),
    "Reference": (
        "reference/commands.md",
        "json.md",
        "rules/",
        "reference/metrics/",
        "reference/ops.md",
        "others.md",
    ),
    "Project": ("architecture.md", "building.md", "contributing.md", "security.md", "changelog.md"),
}
"""Readers' goals, with their pages in order. A folder stands for all pages in it."""

LINK = re.compile(r"(?<!!)\[(?P<text>[^\[\]]*)\]\((?P<target>[^()\s]+)\)")
FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in ``docs/`` and order all of them."""
    from mkdocs.structure.files import File

    for place, content in {**_project_pages(), **docs_reference.pages()}.items():
        files.append(File.generated(config, place, content=content))
    linked = {
        target
        for file in files.documentation_pages()
        for target in _outside(file.content_string, _origin(file.src_uri))
    }
    for target in sorted(linked):
        source = str(PROJECT / target)
        files.append(File.generated(config, f"source/{target}", abs_src_path=source))
    config.nav = navigation([file.src_uri for file in files.documentation_pages()])
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the project into links between pages."""
    here = page.file.src_uri
    return outside_fences(markdown, lambda text: LINK.sub(lambda match: _link(match, here), text))


def navigation(pages: list[str]) -> list[dict[str, Any]]:
    """Return the `SECTIONS` with the pages that exist; other pages come last."""
    left = sorted(pages)
    nav: list[dict[str, Any]] = []
    for title, wanted in SECTIONS.items():
        chosen: list[Any] = []
        for want in wanted:
            if want.endswith("/"):
                inside = [page for page in left if page.startswith(want)]
                inside.sort(key=lambda page: (not page.endswith("index.md"), page))
                if inside:
                    chosen.append({_folder_title(want): inside})
                left = [page for page in left if page not in inside]
            elif want in left:
                chosen.append(want)
                left.remove(want)
        if chosen:
            nav.append({title: chosen})
    return [*nav, {"More": left}] if left else nav


def outside_fences(markdown: str, change: Any) -> str:
    """Apply `change` to all of `markdown` outside fenced blocks."""
    parts = FENCE.split(markdown)
    return "".join(part if part.startswith("```") else change(part) for part in parts)


def _folder_title(folder: str) -> str:
    return {"sheets/": "Measured", "rules/": "Rules", "reference/metrics/": "Metrics, by name"}[folder]


def _project_pages() -> dict[str, str]:
    """Return the pages made from other files of the project, by path."""
    sources = {PROJECT / name: place for name, place in COPIES.items()}
    sources |= {path: f"sheets/{path.name}" for path in sorted((PROJECT / "benchmarks/sheets").glob("*.md"))}
    return {place: path.read_text(encoding="utf-8") for path, place in sources.items() if path.exists()}


def _origin(place: str) -> str:
    """Return the project file that the page at `place` comes from."""
    for name, copied in COPIES.items():
        if copied == place:
            return name
    if place.startswith("sheets/"):
        return f"benchmarks/{place}"
    return f"docs/{place}"


def _place(name: str) -> str | None:
    """Return the path of the page made from the project file `name`, or None."""
    if name in COPIES:
        return COPIES[name]
    if name == "README.md":
        return "index.md"
    path = PurePosixPath(name)
    if path.suffix == ".md" and path.parts[:2] == ("benchmarks", "sheets"):
        return f"sheets/{path.name}"
    if path.parts[0] == "docs":
        return str(path.relative_to("docs"))
    return None


def _target(match: re.Match[str], origin: str) -> tuple[str, str] | None:
    """Return the project file and anchor that a link in `origin` leads to; None if it is no file."""
    name, _, part = match["target"].partition("#")
    if not name or re.match(r"[a-z]+:", name):
        return None
    return os.path.normpath(PurePosixPath(origin).parent / name).replace(os.sep, "/"), part


def _outside(markdown: str, origin: str) -> list[str]:
    """Return the files linked from the page made from `origin` that are no pages."""
    targets = []
    for text in FENCE.split(markdown):
        for match in LINK.finditer("" if text.startswith("```") else text):
            target = _target(match, origin)
            if target and _place(target[0]) is None and (PROJECT / target[0]).is_file():
                targets.append(target[0])
    return targets


def _link(match: re.Match[str], here: str) -> str:
    target = _target(match, _origin(here))
    if target is None:
        return match[0]
    name, part = target
    place = _place(name)
    if place is None or place.startswith("sheets/"):
        if not (PROJECT / _origin(place) if place else PROJECT / name).exists():
            level = logging.INFO if place else logging.WARNING  # a sheet may be yet to be measured
            LOG.log(level, "%s links to %s, which is not there", here, name)
            return match["text"]
        if (PROJECT / name).is_dir():
            return match["text"]
    place = place or f"source/{name}"
    relative = os.path.relpath(place, PurePosixPath(here).parent).replace(os.sep, "/")
    return f"[{match['text']}]({relative}{'#' + part if part else ''})"
