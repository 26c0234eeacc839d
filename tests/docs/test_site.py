"""The documentation site: its pages, its navigation, its links, and the numbers it quotes."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from docs.pages import PROJECT, tool

from gapless.render import formats
from gapless.rules import all_rules

site = tool("docs_site")
reference = tool("docs_reference")


def flat(nav: object) -> list[str]:
    """All pages of a navigation, in order."""
    if isinstance(nav, str):
        return [nav]
    inside = nav.values() if isinstance(nav, dict) else nav
    return [page for entry in inside for page in flat(entry)]  # type: ignore[attr-defined]


def test_every_page_is_in_the_navigation_once() -> None:
    pages = ["index.md", "price.md", "later.md", "rules/GAP101.md", "rules/index.md", "sheets/b.md"]
    nav = site.navigation(pages)
    assert sorted(flat(nav)) == sorted(pages)
    assert nav[-1] == {"More": ["later.md"]}
    rules = next(section["Reference"] for section in nav if "Reference" in section)
    assert rules == [{"Rules": ["rules/index.md", "rules/GAP101.md"]}]


def test_pages_that_are_not_there_yet_are_left_out() -> None:
    assert site.navigation(["price.md"]) == [{"Price": ["price.md"]}]


def test_every_rule_has_a_page_with_all_its_sections() -> None:
    pages = reference.pages()
    for rule in all_rules():
        page = pages[f"rules/{rule.code}.md"]
        assert page.startswith(f"# {rule.code} {rule.name}\n")
        assert all(f"## {title}\n" in page for title in rule.sections())
        assert f"[{rule.code}]({rule.code}.md)" in pages["rules/index.md"]


def test_every_metric_operation_and_command_is_listed() -> None:
    from gapless import metrics, ops
    from gapless.commands import cli

    pages = reference.pages()
    listed = "".join(text for place, text in pages.items() if place.startswith("reference/metrics/"))
    assert all(f"\n## {name}\n" in listed for name in metrics.__all__ if name[0].isupper())
    assert all(f"## {name}\n" in pages["reference/ops.md"] for name in ops.__all__)
    names = cli.list_commands(None)  # type: ignore[arg-type]  # it asks for no context
    assert all(f"## gapless {name}\n" in pages["reference/commands.md"] for name in names)
    assert all(f"\n| `-f {name}` | " in pages["reference/commands.md"] for name in formats())


def test_sessions_are_shown_as_code() -> None:
    text = "A mean.\n\n>>> mean = Mean()\n>>> mean(2.0)\n2.0\n\nArgs:\n    to: what"
    shown = reference._prose(text)
    assert "\n\n```pycon\n>>> mean = Mean()\n>>> mean(2.0)\n2.0\n```\n\n" in shown
    assert shown.endswith("**Args**\n\n- to: what")


def test_every_kind_of_document_is_described() -> None:
    from gapless.render._schema import KINDS

    text = (PROJECT / "docs" / "json.md").read_text(encoding="utf-8")
    for name, kind in KINDS.items():
        written_by = kind.written_by.replace("|", "\\|")
        assert f"| `{name}` | `{kind.format}` | {kind.version} | `{written_by}` |\n" in text


def test_signatures_are_shown_as_they_are_written() -> None:
    def plain(x: int, *, size: int | None = None, **rest: str) -> float:
        raise NotImplementedError

    assert reference._signature("plain", plain) == (
        "plain(x: int, *, size: int | None = None, **rest: str) -> float"
    )


@pytest.mark.parametrize(
    ("here", "before", "after"),
    [
        ("price.md", "[s](../benchmarks/sheets/replay.md)", "[s](sheets/replay.md)"),
        ("journeys/memory.md", "[e](../../examples/README.md)", "[e](../examples.md)"),
        (
            "waits.md",
            "[t](../src/gapless/emulation/waits/waits.tsv#x)",
            "[t](source/src/gapless/emulation/waits/waits.tsv#x)",
        ),
        ("contributing.md", "[a](docs/architecture.md)", "[a](architecture.md)"),
        ("trace.md", "[p](price.md#asking)", "[p](price.md#asking)"),
        ("trace.md", "[h](https://example.org/x)", "[h](https://example.org/x)"),
        ("trace.md", "[l](#below)", "[l](#below)"),
        ("index.md", "[scripts](../tests/field/scripts)", "scripts"),
    ],
)
def test_links_between_files_become_links_between_pages(here: str, before: str, after: str) -> None:
    assert site.LINK.sub(lambda match: site._link(match, here), before) == after


def test_links_in_code_stay_as_they_are() -> None:
    text = "[a](x)\n\n```python\nf[0](x)\n```\n"
    assert site.outside_fences(text, str.upper) == "[A](X)\n\n```python\nf[0](x)\n```\n"


QUOTED = {
    "op_db.md": ("702 of 702 entries, 8579 calls", "8566 calls are bit for bit", "0 misses"),
    "attribution.md": (
        "to the nanosecond: 49 of 49",
        "1.6% of 58.87 s in all, 0.08% of",
        "(14 profiles): 80% of their idleness, 99% of",
    ),
    "replay.md": (
        "| span within 2% | 41 of 41 | 15 of 15 | 9 of 9 | 39 of 39 |",
        "| the worst | 0.65% | 0.27% | 0.27% | 0.37% |",
        "| **trusted** | 40 of 41 | 15 of 15 | 9 of 9 | 39 of 39 |",
        "99.9% of",
    ),
    "damaged.md": ("2,000 versions of 20 profiles", "more than 10 points off without a word: 0"),
    "truth.md": ("precision is 0.9993 and the recall 0.9709",),
    "estimate.md": ("together within 0.8 to 1.25: 13 of 16",),
    "whole_models.md": ("inference (35): mean 3.9%", "training (11): mean 7.9%, worst 14%"),
    "kernel_times.md": (
        "now mean 7.7%, worst 16%; class mean 10.2%, worst 18%; left out mean 10.7%, worst 20%",
        "now mean 4.2%, worst 12%; class mean 7.9%",
    ),
    "published.md": ("16 of 16 are in the interval. Off by 11% in the mean, from 0.80 to 1.46",),
    "ranking.md": ("9 of 10 changes stand in that order",),
    "loader.md": ("59 of 60 within a tenth; the worst is off by 12 %",),
    "torchmetrics_waits.md": ("411 cases. Of these, 320 wait in update, with `unwait` 39",),
}


@pytest.mark.parametrize("sheet", QUOTED)
def test_numbers_that_pages_quote_are_those_of_the_sheets(sheet: str) -> None:
    """`docs/accuracy.md` and `docs/others.md` repeat these: where a sheet is measured anew, so are they."""
    text = (PROJECT / "benchmarks" / "sheets" / sheet).read_text(encoding="utf-8")
    pages = "".join(
        (PROJECT / "docs" / name).read_text(encoding="utf-8") for name in ("accuracy.md", "others.md")
    )
    said = " ".join(pages.split())
    for quote in QUOTED[sheet]:
        assert quote in text, (
            f"{sheet} says something else by now: mend the pages that quote it, and this test"
        )
        assert all(number in said for number in re.findall(r"\d[\d.]*\d", quote.replace("%", " %")))


@pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="needs mkdocs-material")
def test_the_site_builds_and_asks_nothing_of_the_network(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)],
        cwd=PROJECT,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    fetched = re.compile(
        r"<(?:script|img|iframe)[^>]* src=[\"']?(https?:[^\s\"'>]+)|<link[^>]*stylesheet[^>]*https?:"
    )
    for page in tmp_path.rglob("*.html"):
        assert not fetched.search(page.read_text(encoding="utf-8")), page
    for sheet in tmp_path.rglob("*.css"):
        assert not re.search(r"url\([\"']?https?:|@import", sheet.read_text(encoding="utf-8")), sheet
    assert (tmp_path / "rules" / "GAP112" / "index.html").exists()
