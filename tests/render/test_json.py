from __future__ import annotations

import json

import pytest
from sessions import example

from gapless.errors import UsageError
from gapless.model import Report, Verdict
from gapless.render import Style, formats, renderer


def test_one_line_with_every_field():
    text = renderer("json")(example(), Style())
    assert text.count("\n") == 1
    assert text.endswith("\n")
    document = json.loads(text)
    assert (document["format"], document["version"]) == ("gapless-report", 2)
    assert set(Report.__struct_fields__) - {"tables"} < set(document)
    assert {"verdict", "why", "do_first", "confidence"} <= set(document)
    first = document["findings"][0]
    assert first["frequency"]["when"] == "every-step"
    assert first["frequency"]["every"] == 1
    assert first["line"]["library"] == ""
    assert document["environment"]["rank"] == 0


def test_ascii_where_nothing_else_can_be_written():
    report = Report(verdict=Verdict(sentence="caf\u00e9 \udce9"))
    text = renderer("json")(report, Style(unicode=False))
    assert text.isascii()
    assert json.loads(text)["verdict"] == "caf\u00e9 \\udce9"


def test_formats_are_found():
    assert {"github", "json", "junit", "markdown", "sarif", "text"} <= set(formats())
    with pytest.raises(UsageError, match=f"no format 'yaml': there are {', '.join(formats())}"):
        renderer("yaml")
