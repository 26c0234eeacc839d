"""What holds of every format, whatever names a script, a trace or its author comes with."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from xml.etree import ElementTree

import msgspec
import pytest
from building import example
from hypothesis import given, settings
from render.reports import hostile, names, of_profile
from rich.cells import cell_len

from gapless.analyze.compare import compare_reports
from gapless.render import Style, _cell, _comparison, formats, renderer

STYLE = Style(folder="/work")
WITHOUT_PAGE = [form for form in formats() if form != "html"]  # the page has tests of its own


@pytest.mark.parametrize("form", WITHOUT_PAGE)
@pytest.mark.parametrize("unicode", [True, False])
@settings(deadline=None, max_examples=25)
@given(name=names)
def test_nothing_steers_a_terminal_and_every_encoding_holds_it(form, unicode, name):
    style = msgspec.structs.replace(STYLE, unicode=unicode, unfold=True, frames=True)
    text = renderer(form)(hostile(name), style)
    assert text.endswith("\n")
    text.encode("utf-8" if unicode else "ascii")
    assert [c for c in text if not c.isprintable() and c != "\n"] == []
    if form in ("json", "sarif"):
        json.loads(text)
    if form == "junit":
        ElementTree.fromstring(text)


@pytest.mark.parametrize("width", [40, 60, 80])
@settings(deadline=None, max_examples=25)
@given(name=names)
def test_names_of_any_length_fit_the_terminal(width, name):
    style = msgspec.structs.replace(STYLE, width=width, unfold=True)
    lines = renderer("text")(hostile(name), style).split("\n")
    # A path is not broken, so that it can be clicked and copied; it has its line for itself.
    assert [line for line in lines if cell_len(line) > width and not line.endswith((".py:7", "…"))] == []
    assert max(map(len, lines)) <= 1_100


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[str, frozenset[str]]] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.add((tag, frozenset(name for name, _ in attributes)))


@settings(deadline=None, max_examples=25)
@given(name=names)
def test_a_cell_of_a_notebook_has_the_tags_of_any_other(name):
    """Two names that differ only in what they say give the same elements and attributes."""
    seen = []
    for one in (name, "x"):
        parser = Tags()
        parser.feed(_cell.render(hostile(one), STYLE))
        seen.append(parser.seen)
    assert seen[0] - seen[1] == set()


@settings(deadline=None, max_examples=15)
@given(name=names)
def test_comparisons(name):
    made = compare_reports((name, example()), (name, hostile(name)))
    for text in (_comparison.as_text(made, STYLE), _comparison.as_json(made, STYLE)):
        text.encode()
        assert [c for c in text if not c.isprintable() and c != "\n"] == []


@pytest.mark.parametrize("width", [40, 50, 60, 80, 100])
@pytest.mark.parametrize("made", [example, of_profile], ids=["session", "profile"])
def test_text_is_no_wider_than_the_terminal(made, width):
    style = msgspec.structs.replace(STYLE, width=width, unfold=True, frames=True)
    for unicode in (True, False):
        text = renderer("text")(made(), msgspec.structs.replace(style, unicode=unicode))
        assert max(map(cell_len, text.split("\n"))) <= width
