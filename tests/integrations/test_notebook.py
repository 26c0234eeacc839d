"""The cell magic in an IPython shell, and how reports show themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from render.reports import hostile, names
from sessions import example

from gapless.integrations import notebook

pytest.importorskip("IPython")

CELL = """%%gapless --gpu T4 --into seen
import torch
model = torch.nn.Linear(8, 8).to("cuda")
opt = torch.optim.SGD(model.parameters(), 0.1)
for step in range(6):
    model(torch.randn(4, 8, device="cuda")).sum().backward()
    opt.step()
    done = model.bias.sum().item()
"""


@pytest.fixture(scope="module")
def shell() -> Iterator[Any]:
    from IPython.core.interactiveshell import InteractiveShell

    interactive = InteractiveShell()
    interactive.history_manager.enabled = False
    interactive.run_line_magic("load_ext", "gapless.integrations.notebook")
    yield interactive
    interactive.run_line_magic("unload_ext", "gapless.integrations.notebook")
    interactive.history_manager.end_session()


def test_a_cell_is_run_on_the_emulated_device(shell):
    shown = shell.run_cell(CELL).result
    report = shell.user_ns["seen"]
    assert report is shown.report
    assert report.environment.device == "Tesla T4"
    assert report.steps.waits_per_step == 1
    finding = report.findings[0]
    # The lines of the cell as a reader counts them, the magic's own included.
    assert (finding.code, finding.line.line) == ("GAP101", 8)
    assert finding.line.code == "done = model.bias.sum().item()"
    assert isinstance(shell.user_ns["done"], float)
    assert "done = model.bias.sum().item()" in repr(shown)
    assert "<code>done = model.bias.sum().item()</code>" in shown._repr_html_()


def test_a_cell_that_fails_is_reported(shell, capsys):
    shown = shell.run_cell("%%gapless\nimport torch\nraise ValueError('no more')").result
    assert shown.report.ending.message == "ValueError: no more"
    text = capsys.readouterr().out
    assert "no more" in text
    assert "notebook.py" not in text
    assert shell.run_cell("2").result == 2


def test_lines_of_other_cells_are_named_as_a_reader_does(shell):
    shell.run_cell("1", store_history=True)
    shell.run_cell("def read(x):\n    return x.sum().item()", store_history=True)
    number = shell.execution_count - 1
    profile = repr(shell.run_cell("%%gapless\nimport torch\nread(torch.ones(3, device='cuda'))").result)
    assert f"cell {number}:2 in read\n  │ return x.sum().item()\n" in profile
    assert "cell 1:3\n" not in profile
    assert "/" not in profile.split("│")[0]


def test_what_cannot_be_run_is_said(shell, capsys):
    assert shell.run_cell("%%gapless --gpu NOPE\n1").result is None
    assert "unknown GPU 'NOPE'" in capsys.readouterr().err
    for line in ("--foo", "--into 7x", "--devices 0", "'"):
        assert shell.run_cell(f"%%gapless {line}\n1").result is None
        assert "%%gapless [--gpu NAME]" in capsys.readouterr().err
    shown = shell.run_cell("%%gapless\nx = (").result
    assert shown.report.ending.message == "SyntaxError"


def test_reports_show_themselves(shell):
    data, _ = shell.display_formatter.format(example())
    assert " ".join(data["text/plain"].split()).startswith(example().sentence)
    assert data["text/html"].startswith('<div class="gapless">')


class Parser(HTMLParser):
    """Every tag must be closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        assert {name for name, _ in attributes} <= {"style", "class"}
        self.seen.add(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


TAGS = {
    "div",
    "p",
    "b",
    "br",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "details",
    "summary",
    "code",
    "span",
    "i",
}


@settings(deadline=None, max_examples=30)
@given(names)
def test_hostile_names(name):
    text = notebook.as_html(hostile(name))
    text.encode()
    parser = Parser()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    assert parser.seen <= TAGS
    assert not re.search(r"[\x00-\x08\x1b\u202e]", text)
