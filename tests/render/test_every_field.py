"""Whatever stands in whatever field of a document: every format shows it, and stays readable."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from render.documents import KINDS, document

from gapless.model import Finding, Report
from gapless.model.loading_mistakes import Mistake
from gapless.render import Style, formats, renderer

STYLE = Style(folder="/work", unfold=True, frames=True)
LONG = "name_" * 20_000
TEXTS = {
    "long": LONG,
    "formula": "=HYPERLINK(A1)",
    "hidden formula": "\t=1+1",
    "formula behind a line's end": "\r\n@SUM(A1)",
    "control": "\x1b[2J\x07\x00\u202e\u2028end",
    "markup": "</script><b>`|*_]]>&amp;",
    "command": "a\n::error::b\n##[error]c",
    "lone surrogate": "\ud800",
}
LONGEST_LINE = {"text": 2_500, "markdown": 30_000, "github": 30_000, "csv": 40_000}
"""Characters of the longest line that may be shown of a name of a hundred thousand."""
SIGNS = tuple("=+-@\t\r＝＋－＠")
Place = tuple[Any, ...]
_CODED = (Finding, Mistake)
"""Their `code` is that of a rule."""


def places(value: Any, before: Place, visited: set[tuple[type, str]]) -> Iterator[Place]:
    """Where `value` has text: each field of each class once."""
    if isinstance(value, msgspec.Struct):
        for field in msgspec.structs.fields(value):
            own = getattr(value, field.name)
            if field.name == "code" and type(value) in _CODED:
                continue
            if isinstance(own, str) and field.type is str and (type(value), field.name) not in visited:
                visited.add((type(value), field.name))
                yield (*before, field.name)
            elif isinstance(own, tuple) and own and field.type == tuple[str, ...]:
                if (type(value), field.name) not in visited:
                    visited.add((type(value), field.name))
                    yield (*before, field.name, 0)
            else:
                yield from places(own, (*before, field.name), visited)
    elif isinstance(value, tuple | list):
        for at, item in enumerate(value):
            yield from places(item, (*before, at), visited)


def changed(value: Any, place: Place, text: str) -> Any:
    """`value` with `text` at `place`."""
    if not place:
        return text
    key, *rest = place
    if isinstance(key, str):
        return msgspec.structs.replace(value, **{key: changed(getattr(value, key), tuple(rest), text)})
    return tuple(changed(item, tuple(rest), text) if at == key else item for at, item in enumerate(value))


@cache
def filled(kind: str, text: str, part: int) -> Report:
    """The document with the text of that name in every second field, from field `part` on."""
    filled_document = document(kind)
    for place in list(places(filled_document, (), set()))[part::2]:
        filled_document = changed(filled_document, place, TEXTS[text])
    return filled_document


def _cells(text: str) -> None:
    for row in csv.reader(io.StringIO(text), strict=True):
        assert [cell for cell in row if cell.startswith(SIGNS) and not _number(cell)] == []


def _number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


READERS: dict[str, Callable[[str], object]] = {
    "json": json.loads,
    "sarif": json.loads,
    "junit": ElementTree.fromstring,
    "csv": _cells,
}


@pytest.mark.parametrize("form", list(formats()))
@pytest.mark.parametrize("kind", KINDS)
def test_every_field_may_hold_anything(kind, form):
    wrong = []
    for text in TEXTS:
        for part in (0, 1):
            shown = renderer(form)(filled(kind, text, part), STYLE)
            shown.encode(errors="strict" if form != "html" else "backslashreplace")  # as pages are written
            READERS.get(form, str)(shown)
            if form != "html":  # whose scripts are no text
                wrong += [(text, part, char) for char in shown if not char.isprintable() and char != "\n"]
            if max(map(len, shown.split("\n"))) > LONGEST_LINE.get(form, len(shown)):
                wrong.append((text, part, "a line is too long"))
    assert wrong == []
