"""The report as commands of a workflow, read back as the runner reads them."""

from __future__ import annotations

import re

import msgspec
from hypothesis import given, settings
from render.reports import hostile, names, of_profile
from sessions import example

from gapless.model.finding import Spot
from gapless.render import Style, renderer
from gapless.render.github import command

STYLE = Style(folder="/work")
_COMMAND = re.compile(r"::(\w+)(?: ([^:]*))?::(.*)")


def read(line: str) -> tuple[str, dict[str, str], str]:
    """A command as the runner understands it: name, properties, message."""
    name, profile, message = _COMMAND.fullmatch(line).groups()
    pairs = (part.split("=", 1) for part in profile.split(",")) if profile else ()
    properties = {key: undone(undone(value, "%3A", ":"), "%2C", ",") for key, value in pairs}
    return name, {key: _data(value) for key, value in properties.items()}, _data(message)


def undone(text: str, escaped: str, plain: str) -> str:
    return text.replace(escaped, plain)


def _data(text: str) -> str:
    return undone(undone(undone(text, "%0D", "\r"), "%0A", "\n"), "%25", "%")


def test_a_line_for_each_finding():
    lines = [read(line) for line in renderer("github")(example(), STYLE).splitlines()]
    assert [name for name, _, _ in lines] == ["notice"] + 3 * ["warning"] + 4 * ["notice"]
    assert lines[0][2].startswith("3 to 4 syncs in every step")
    _, properties, message = lines[1]
    assert properties == {"file": "train.py", "line": "50", "title": "GAP141 torchmetrics-nan-check"}
    assert "2× in every step" in message
    assert 'Instead: `nan_strategy="disable"`.' in message


def test_each_line_of_a_finding_that_one_change_mends_is_annotated():
    report = example()
    first = report.findings[0]
    at = [msgspec.structs.replace(first.line, line=line) for line in (50, 53, 61)]
    merged = msgspec.structs.replace(first, spots=tuple(Spot(line=line) for line in at))
    text = renderer("github")(msgspec.structs.replace(report, findings=(merged,)), STYLE)
    timelines = [read(line) for line in text.splitlines()][1:4]
    assert [properties["line"] for _, properties, _ in timelines] == ["50", "53", "61"]
    assert {properties["title"] for _, properties, _ in timelines} == {"GAP141 torchmetrics-nan-check"}
    assert timelines[2][2].startswith("The change at train.py:50 also fixes this line. Instead: ")


def test_what_has_no_place_in_the_repository_names_it_in_words():
    _, properties, message = read(renderer("github")(example(), Style(folder="/elsewhere")).splitlines()[1])
    assert properties == {"title": "GAP141 torchmetrics-nan-check"}
    assert message.startswith("train.py:50: ")


@settings(deadline=None, max_examples=40)
@given(names)
def test_escaped_text_is_restored(name):
    text = command("warning", name, {"file": name, "title": name, "empty": ""})
    assert "\n" not in text
    assert "\r" not in text
    assert read(text.replace("\x85", "")) == (
        "warning",
        {"file": name.replace("\x85", ""), "title": name.replace("\x85", "")},
        name.replace("\x85", ""),
    )


@settings(deadline=None, max_examples=40)
@given(names)
def test_hostile_names_start_no_command_of_their_own(name):
    lines = renderer("github")(hostile(name), STYLE).split("\n")
    assert lines.pop() == ""
    assert len(lines) == 1 + 6 + 2  # the verdict, findings, what was not seen and a note
    assert all(re.match(r"::(notice|warning) ", line) and line.isprintable() for line in lines)


def test_a_profile_and_ascii():
    profile = of_profile()
    assert renderer("github")(profile, Style()).count("\n") == 1 + len(profile.findings) + len(profile.notes)
    assert renderer("github")(profile, Style(unicode=False)).isascii()
