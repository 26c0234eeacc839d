"""The report for a terminal. What it looks like is a file, to be read by whoever changes it."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from sessions import Simulation, example

from gapless.analyze import report
from gapless.model import Ending, Report, Verdict
from gapless.render import Style, renderer

HERE = Path(__file__).parent
STYLE = Style(folder="/work")


def shown(report: Report, **style: object) -> str:
    return renderer("text")(report, msgspec.structs.replace(STYLE, **style))


@pytest.mark.parametrize(
    ("name", "style"),
    [
        ("folded", {}),
        ("unfolded", {"unfold": True, "frames": True, "width": 100}),
        ("ascii", {"unicode": False, "width": 50}),
    ],
)
def test_output_equals_the_saved_example(name, style):
    """After an intended change: delete the file, run the test twice, and read the new file."""
    path = HERE / "expected" / f"{name}.txt"
    text = shown(example(), **style)
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        pytest.fail(f"{path} was not there and has been written: read it")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("unfold", [False, True])
def test_no_line_is_wider_than_the_terminal(width, unfold):
    report = example()
    assert max(map(len, shown(report, width=width, unfold=unfold).splitlines())) <= width


def test_colours_change_nothing_but_colours():
    plain = shown(example())
    colored = shown(example(), color="truecolor")
    assert "\x1b[" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain
    assert "\x1b" not in plain


def test_ascii_is_ascii():
    assert shown(example(), unicode=False).isascii()
    assert "2x in every step" in shown(example(), unicode=False)


def test_what_would_steer_the_terminal_is_spelled_out():
    run = Simulation(code={50: "x = '\x1b[2J\u202e'"})
    for _ in range(4):
        run.wait(50)
        run.step()
    text = shown(report(run.session(), lambda file: ""))
    assert "\x1b" not in text
    assert "\\x1b[2J\\u202e" in text


def test_markup_in_code_is_code():
    run = Simulation(code={50: "x[bold].item()  # [/red] :smile:"})
    for _ in range(4):
        run.wait(50)
        run.step()
    assert "│ x[bold].item()  # [/red] :smile:\n" in shown(report(run.session(), lambda file: ""))


ENDINGS = [
    (Ending(), ""),
    (Ending(how="enough-steps"), "Only 12 training steps ran"),
    (Ending(how="exit"), ""),
    (Ending(how="exit", status=3), "The script exited with status 3:"),
    (Ending(how="interrupted", status=130), "The script was interrupted"),
    (Ending(how="error", status=1, message="ValueError: x"), "The script failed (ValueError: x)"),
    (
        Ending(how="not-emulated", status=3, message="a.py:3: a kernel"),
        "The run ended early: a.py:3: a kernel",
    ),
]


@pytest.mark.parametrize(("ending", "words"), ENDINGS)
def test_endings(ending, words):
    text = shown(example(ending))
    assert words in text
    if not words:
        assert text.replace("\n\nnote:", "\nnote:") == shown(example(Ending())).replace(
            "\n\nnote:", "\nnote:"
        )


def test_an_empty_report():
    assert shown(Report(verdict=Verdict(sentence="No waits in the run"))) == "No waits in the run.\n"


def test_hints_close_the_report():
    text = shown(example(), hints=("save it with -o FILE",))
    assert " ".join(text.split()).endswith(" · --all shows the rest · save it with -o FILE")


def test_the_same_remedy_is_shown_once():
    run = Simulation(code={50: "x[mask]", 60: "y[mask]"})
    for _ in range(4):
        run.wait(50, operator="aten::index", mechanism="size", call="Tensor.__getitem__")
        run.wait(60, operator="aten::index", mechanism="size", call="Tensor.__getitem__")
        run.step()
    result = report(run.session(), lambda file: "")
    first, second = result.findings
    same = msgspec.structs.replace(
        result, findings=(first, msgspec.structs.replace(second, remedy=first.remedy))
    )
    text = shown(same)
    assert f"instead see {first.code} at train.py:50 above" in text
    assert text.count("instead") == 2


def test_a_long_report_names_the_first_findings_and_counts_the_rest():
    run = Simulation(code={number + 10: f"i = torch.nonzero(mask{number})" for number in range(40)})
    for _ in range(6):
        for number in range(40):
            run.wait(number + 10, operator="aten::nonzero", mechanism="size", call="")
        run.step(95)
    result = report(run.session())
    short, whole = shown(result), shown(result, unfold=True)
    assert short.count("GAP110 nonzero") == 20
    assert "and 20 findings with fewer syncs (--all)" in short
    assert whole.count("GAP110 nonzero") == 40
