"""What holds of every document in every format, whatever names a script, a trace or its author comes with."""

from __future__ import annotations

import json
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given, settings
from render.documents import KINDS, document
from render.reports import hostile, names
from rich.cells import cell_len

from gapless.model import Report
from gapless.render import Style, _cell, formats, renderer

STYLE = Style(folder="/work")
WITHOUT_PAGE = [form for form in formats() if form != "html"]  # the page has tests of its own
HERE = Path(__file__).parent


@cache
def ordinary(kind: str) -> Report:
    """The document with names that are no trouble."""
    return document(kind)


@pytest.mark.parametrize("form", WITHOUT_PAGE)
@pytest.mark.parametrize("unicode", [True, False])
@settings(max_examples=25)
@given(name=names)
def test_nothing_steers_a_terminal_and_every_encoding_holds_it(form, unicode, name):
    assert harmful(hostile(name), form, unicode) == []


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=4)
@given(name=names)
def test_no_other_document_breaks_a_format(kind, name):
    filled = document(kind, name)
    assert {form: harmful(filled, form, True) for form in WITHOUT_PAGE} == {form: [] for form in WITHOUT_PAGE}


def harmful(report: Report, form: str, unicode: bool) -> list[str]:
    """Characters that steer what shows them; what cannot be read back, or encoded, raises."""
    style = msgspec.structs.replace(STYLE, unicode=unicode, unfold=True, frames=True)
    text = renderer(form)(report, style)
    assert text.endswith("\n")
    text.encode("utf-8" if unicode else "ascii")
    if form in ("json", "sarif"):
        json.loads(text)
    if form == "junit":
        ElementTree.fromstring(text)
    return [c for c in text if not c.isprintable() and c != "\n"]


@pytest.mark.parametrize("width", [40, 60, 80])
@settings(max_examples=25)
@given(name=names)
def test_names_of_any_length_fit_the_terminal(width, name):
    style = msgspec.structs.replace(STYLE, width=width, unfold=True)
    lines = renderer("text")(hostile(name), style).split("\n")
    # A path is not broken, so that it can be clicked and copied; it has its line for itself.
    assert [line for line in lines if cell_len(line) > width and not line.endswith((".py:7", "…"))] == []
    assert max(map(len, lines)) <= 1_100


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_text_is_no_wider_than_the_terminal(kind, width):
    for unicode in (True, False):
        for unfold in (True, False):
            style = msgspec.structs.replace(STYLE, width=width, unicode=unicode, unfold=unfold, frames=unfold)
            lines = renderer("text")(ordinary(kind), style).split("\n")
            assert max(map(cell_len, lines)) <= width


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [60, 80])
def test_no_cell_of_a_table_is_cut_off(kind, width):
    """Every number and every word of a table is there, in whichever line."""
    report = ordinary(kind)
    profile = renderer("text")(report, msgspec.structs.replace(STYLE, width=width, unfold=True))
    whole = "".join(profile.split())
    for table in report.tables:
        for name in (column.name for column in table.columns[1:] if len(table.columns) > 2):
            assert all(word in whole for word in name.split())
        for row in table.rows:
            for cell in row.cells:
                assert not isinstance(cell, str) or all(word in whole for word in cell.split())


@pytest.mark.parametrize("kind", KINDS)
def test_colours_change_nothing_but_colours(kind):
    plain = renderer("text")(ordinary(kind), STYLE)
    coloured = renderer("text")(ordinary(kind), msgspec.structs.replace(STYLE, color="truecolor"))
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_lines_are_the_same_in_every_format(kind):
    """The verdict, then why, then what to do first, with its effect."""
    report = ordinary(kind)
    verdict = report.verdict
    for form in ("text", "markdown", "github", "junit"):
        text = " ".join(renderer(form)(report, msgspec.structs.replace(STYLE, width=4000)).split())
        head = re.split(r"\W+", verdict.sentence)[0]
        assert head in (text if form == "junit" else text[:300])  # there the cases stand before what is said
    data = json.loads(renderer("json")(report, STYLE))
    assert data["verdict"] == verdict.sentence
    assert data["why"] == list(verdict.why)
    assert [each["what"] for each in data["do_first"]] == [each.what for each in verdict.do_first]
    assert [each["after"] for each in data["do_first"]] == [each.after for each in verdict.do_first]


@pytest.mark.parametrize("form", ["text", "markdown", "github", "html", "json", "junit"])
@pytest.mark.parametrize("why", [(), ("the loader is slow",)])
def test_what_is_a_fact_and_no_reason_is_in_every_format(form, why):
    report = ordinary("session")
    verdict = msgspec.structs.replace(report.verdict, why=why, facts=("So fast: 1,234 steps/s",))
    output = renderer(form)(msgspec.structs.replace(report, verdict=verdict), STYLE)
    assert "So fast: 1,234 steps/s" in output
    lead = {"text": "Why: ", "html": ">Why<"}.get(form)
    assert lead is None or (lead in output) == bool(why)


@pytest.mark.parametrize("kind", KINDS)
def test_output_equals_the_saved_example(kind):
    """After an intended change: delete the file, run the test twice, and read the new file."""
    path = HERE / "expected" / f"{kind}.txt"
    text = renderer("text")(ordinary(kind), STYLE)
    if not path.exists():
        path.write_text(text, encoding="utf-8")
        pytest.fail(f"{path} was not there and has been written: read it")
    assert text == path.read_text(encoding="utf-8")


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[str, frozenset[str]]] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.add((tag, frozenset(name for name, _ in attributes)))


@settings(max_examples=25)
@given(name=names)
def test_a_cell_of_a_notebook_has_the_tags_of_any_other(name):
    """Two names that differ only in what they say give the same elements and attributes."""
    notebook_tags = []
    for content in (name, "x"):
        parser = Tags()
        parser.feed(_cell.render(hostile(content), STYLE))
        notebook_tags.append(parser.seen)
    assert notebook_tags[0] - notebook_tags[1] == set()
