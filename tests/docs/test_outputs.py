"""What pages show as output is what the commands print: findings, places and lines of code, run anew."""

from __future__ import annotations

import re
from pathlib import Path

import fork_server
import pytest
from docs.pages import PAGES, PROJECT, tool

tools = tool("outputs")
PROFILES = PROJECT.parent / "shared"
WITH_OUTPUTS = [name for name, path in PAGES.items() if tools.outputs(path.read_text(encoding="utf-8"))]
QUICK = ("README", "start", "journeys_loading", "journeys_memory")
"""Pages whose commands run anew in the tests; the scripts of the others are those of `examples`, which
have tests of their own in `tests/field` that say what is found at which line."""

KEY = re.compile(r"^GAP\d+ |^ +│ |^ +\S+\.py:\d+(?!.*→)|^At most \d|^Nothing worth fixing: no syncs")
_RESTS_ON = re.compile(r" \((A100|counted on).*")
MEASURED = re.compile(r"[\d.,]+(?:–[\d.,]+)?( %| [mµn]?s\b|(?= →))(?: at best)?")
"""Numbers that another machine, or another hour, shows otherwise."""
_SETTING = re.compile(r"(?<=num_workers=)\d+|, (?:prefetch_factor|pin_memory)=\w+")
"""How many workers are best is measured, too, and what makes as good as no difference."""


def key_lines(text: str) -> list[str]:
    """The lines of `text` that carry a finding, its place or its code, or that there is none."""
    return [_RESTS_ON.sub("", line).rstrip() for line in text.split("\n") if KEY.search(line)]


def printed_by(command: str, folder: Path, *options: str) -> str:
    done = fork_server.run(tools.words(command, *options), folder, **tools.SETTINGS)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def answer(text: str) -> list[str]:
    """The verdict's sentence and the changes to make, without measured numbers and as one line each."""
    head, _, todo = text.partition("Do first")
    sentence = re.search(r"^[^$].*?(?=\.(?:\s|$)(?!\d))", head.split("\n", 1)[1].strip("…\n "), re.DOTALL)
    changes = re.split(r"\n(?= \d+  )", todo.split("\n\n")[0])[1:]
    changes = [re.split(r"\n(?! )", change)[0] for change in changes]
    parts = [(sentence[0] if sentence else "").split("; with ")[0], *changes]
    return [" ".join(_SETTING.sub("", MEASURED.sub(r"#\1", part)).split()) for part in parts]


@pytest.mark.parametrize("name", QUICK)
def test_a_page_shows_what_its_commands_print(name: str, tmp_path: Path) -> None:
    page = PAGES[name].read_text(encoding="utf-8")
    if not tools.prepare(tmp_path, page, PROFILES if PROFILES.is_dir() else None):
        pytest.skip("no public profiles")
    for output in tools.outputs(page):
        options = ["-q", "--no-prices"] if output.command.startswith("gapless check") else ["-q"]
        printed = printed_by(output.command, tmp_path, *options)
        wanted = key_lines(output.shown)
        missing = [line for line in wanted if line not in key_lines(printed)]
        assert not missing, f"{output.command} prints other lines (python tools/outputs.py): {missing}"


SCREENS = tools.outputs(PAGES["screens"].read_text(encoding="utf-8"))


def test_the_first_screens_say_what_the_commands_say(tmp_path: Path) -> None:
    """What to change first, in the order in which it stands: the words, the lines, and no time."""
    page = PAGES["screens"].read_text(encoding="utf-8")
    profiles = tools.prepare(tmp_path, page, PROFILES if PROFILES.is_dir() else None)
    for screen in SCREENS:
        if not profiles and tools.needs([screen.command]):
            continue
        printed = tools.kept(printed_by(screen.command, tmp_path, "-q"), screen.kept)
        assert answer(f"$\n{printed}") == answer(screen.shown), screen.command


def test_the_answer_of_a_screen_is_its_sentence_and_its_changes() -> None:
    shown = (
        "$ gapless check a.py\n…\n\nYour GPU would idle for 96 % of each step: 95 %\nwaiting. (A100: 4 µs)\n"
        "Why: b.\n\nDo first      per step\n 1  `num_workers=2`\n    a.py:24     9.4 → 5.4 ms at best\n"
        " 2  pin it  a.py:37   5.4 → 5.3 ms\na.py · 10 steady steps\n\n…\n"
    )
    assert answer(shown) == [
        "Your GPU would idle for # % of each step: # % waiting",
        "1 `num_workers=` a.py:24 # → # ms",
        "2 pin it a.py:37 # → # ms",
    ]


def test_the_readme_shows_what_a_profile_says_to_the_letter(tmp_path: Path) -> None:
    page = PAGES["README"].read_text(encoding="utf-8")
    if not tools.prepare(tmp_path, page, PROFILES if PROFILES.is_dir() else None):
        pytest.skip("no public profiles")
    (output,) = (output for output in tools.outputs(page) if output.command.startswith("gapless trace"))
    assert (
        output.shown
        == f"$ {output.command}\n{tools.kept(printed_by(output.command, tmp_path, '-q'), output.kept)}\n"
    )


@pytest.mark.parametrize("name", WITH_OUTPUTS)
def test_outputs_were_filled_in_and_name_no_folder_of_the_machine(name: str) -> None:
    for output in tools.outputs(PAGES[name].read_text(encoding="utf-8")):
        lines = output.shown.split("\n")
        assert lines[0] == f"$ {output.command}"
        assert len(lines) > 2
        assert not re.search(r"(?<![\w.…])/(home|root|work|tmp|usr)/", output.shown)


@pytest.mark.parametrize(
    "name", ["start", "journeys_metrics", "journeys_segmentation", "journeys_loading", "journeys_memory"]
)
def test_each_story_shows_real_output(name: str) -> None:
    assert any(key_lines(output.shown) for output in tools.outputs(PAGES[name].read_text(encoding="utf-8")))


def test_paragraphs_that_are_left_out_leave_a_mark() -> None:
    assert tools.kept("a\n\nb \n\n\nc\n\nd\n", "2-3") == "…\n\nb\n\nc\n\n…"
    assert tools.kept("a\n\nb\n", None) == "a\n\nb"
    assert tools.kept("a\n\nb\n", "1, 2") == "a\n\nb"


def test_lines_of_code_in_outputs_of_the_examples_are_where_they_say() -> None:
    """A line that an output shows at ``file.py:number`` is that line of the example."""
    compared = 0
    for name in WITH_OUTPUTS:
        text = PAGES[name].read_text(encoding="utf-8")
        for path, number, code in re.findall(r"(examples/\S+?\.py):(\d+)[^\n]*\n +│ ([^\n]+)\n", text):
            line = (PROJECT / path).read_text(encoding="utf-8").split("\n")[int(number) - 1]
            assert line.strip().startswith(code.rstrip("…").strip()), f"{name}: {path}:{number}"
            compared += 1
    assert compared
