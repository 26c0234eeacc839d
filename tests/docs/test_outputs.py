"""What pages show as output is what the commands print: findings, places and lines of code, run anew."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from docs.pages import PAGES, PROJECT, tool

tools = tool("outputs")
PROFILES = PROJECT.parent / "shared"
WITH_OUTPUTS = [name for name, path in PAGES.items() if tools.outputs(path.read_text(encoding="utf-8"))]
QUICK = ("README", "start", "journeys_loading", "journeys_memory")
"""Pages whose commands run anew in the tests; the scripts of the others are those of `examples`, which
have tests of their own in `tests/field` that say what is found at which line."""

KEY = re.compile(r"^GAP\d+ |^ +│ |^ +\S+\.py:\d+|^At most \d|waits? per training step|^No waits")


def key_lines(text: str) -> list[str]:
    """The lines of `text` that carry a verdict, a finding, its place or its code."""
    return [line.rstrip() for line in text.split("\n") if KEY.search(line)]


@pytest.mark.parametrize("name", QUICK)
def test_a_page_shows_what_its_commands_print(name: str, tmp_path: Path) -> None:
    page = PAGES[name].read_text(encoding="utf-8")
    if not tools.prepare(tmp_path, page, PROFILES if PROFILES.is_dir() else None):
        pytest.skip("no public profiles")
    for one in tools.outputs(page):
        options = ["-q", "--no-prices"] if one.command.startswith("gapless check") else ["-q"]
        printed = tools.run(one.command, tmp_path, *options)
        wanted = key_lines(one.shown)
        missing = [line for line in wanted if line not in key_lines(printed)]
        assert not missing, f"{one.command} prints other lines (python tools/outputs.py): {missing}"


def test_the_readme_shows_what_a_profile_says_to_the_letter(tmp_path: Path) -> None:
    page = PAGES["README"].read_text(encoding="utf-8")
    if not tools.prepare(tmp_path, page, PROFILES if PROFILES.is_dir() else None):
        pytest.skip("no public profiles")
    (one,) = (one for one in tools.outputs(page) if one.command.startswith("gapless trace"))
    assert one.shown == f"$ {one.command}\n{tools.kept(tools.run(one.command, tmp_path, '-q'), one.kept)}\n"


@pytest.mark.parametrize("name", WITH_OUTPUTS)
def test_outputs_were_filled_in_and_name_no_folder_of_the_machine(name: str) -> None:
    for one in tools.outputs(PAGES[name].read_text(encoding="utf-8")):
        lines = one.shown.split("\n")
        assert lines[0] == f"$ {one.command}"
        assert len(lines) > 2
        assert not re.search(r"(?<![\w.…])/(home|root|work|tmp|usr)/", one.shown)


@pytest.mark.parametrize(
    "name", ["start", "journeys_metrics", "journeys_segmentation", "journeys_loading", "journeys_memory"]
)
def test_each_story_shows_real_output(name: str) -> None:
    assert any(key_lines(one.shown) for one in tools.outputs(PAGES[name].read_text(encoding="utf-8")))


def test_paragraphs_that_are_left_out_leave_a_mark() -> None:
    assert tools.kept("a\n\nb \n\n\nc\n\nd\n", "2-3") == "…\n\nb\n\nc\n\n…"
    assert tools.kept("a\n\nb\n", None) == "a\n\nb"
    assert tools.kept("a\n\nb\n", "1, 2") == "a\n\nb"


def test_lines_of_code_in_outputs_of_the_examples_are_where_they_say() -> None:
    """A line that an output shows at ``file.py:number`` is that line of the example."""
    seen = 0
    for name in WITH_OUTPUTS:
        text = PAGES[name].read_text(encoding="utf-8")
        for path, number, code in re.findall(r"(examples/\S+?\.py):(\d+)[^\n]*\n +│ ([^\n]+)\n", text):
            line = (PROJECT / path).read_text(encoding="utf-8").split("\n")[int(number) - 1]
            assert line.strip().startswith(code.rstrip("…").strip()), f"{name}: {path}:{number}"
            seen += 1
    assert seen
