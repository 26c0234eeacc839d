"""Pages from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pages import Page, assert_sound
from tracing import training

from gapless.commands import _output, main
from gapless.errors import UsageError
from gapless.model.profile import load

SCRIPT = """
import os, subprocess, sys
import gpu

print("printed")
for _ in range(14):
    gpu.wait()
    gpu.step()
os.write(1, b"written")
subprocess.run([sys.executable, "-c", "print('by a child')"])
"""


@pytest.fixture
def trace(tmp_path) -> Path:
    return training(steps=4).write(tmp_path / "trace.json")


def run(capsys, *words: object) -> tuple[int, str, str]:
    status = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return status, out, err


def test_a_trace_is_a_page_with_a_timeline(capsys, trace):
    status, out, err = run(capsys, "trace", "-f", "html", trace)
    assert (status, err) == (0, "")
    page = Page(out)
    assert_sound(page)
    assert page.data["lanes"]["windows"]


def test_what_is_saved_is_small_unless_a_page_was_asked_for(capsys, trace, tmp_path):
    small, drawn = tmp_path / "small.json", tmp_path / "drawn.json"
    assert run(capsys, "trace", "-o", small, trace)[0] == 0
    assert run(capsys, "trace", "-f", "html", "-o", drawn, trace)[0] == 0
    assert load(small)[0].lanes is None
    assert load(drawn)[0].lanes is not None
    assert "There is no timeline here" in run(capsys, "show", "-f", "html", small)[1]
    assert Page(run(capsys, "show", "-f", "html", drawn)[1]).data is not None


def test_ranks_are_side_by_side(capsys, tmp_path):
    for rank in range(2):
        training(steps=3, rank=rank).write(tmp_path / f"rank{rank}.json")
    status, out, _ = run(capsys, "trace", "-f", "html", tmp_path)
    page = Page(out)
    assert status == 0
    assert_sound(page)
    assert "ranks" in page.ids


def test_two_runs_are_no_page(capsys, trace, tmp_path):
    other = training(steps=4).write(tmp_path / "again.json")
    status, out, err = run(capsys, "trace", "-f", "html", trace, other)
    assert (status, out) == (2, "")
    assert "a page is of one run" in err


def test_a_comparison_is_a_page(capsys, trace, tmp_path):
    other = training(steps=6).write(tmp_path / "after.json")
    status, out, _ = run(capsys, "compare", "-f", "html", trace, other)
    assert status == 0
    assert_sound(Page(out))


def test_a_checked_script_writes_elsewhere(write, fake_gapless):
    write("train.py", SCRIPT)
    done = fake_gapless("check", "-f", "html", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("<!doctype html>")
    assert_sound(Page(done.stdout))
    assert "printed" in done.stderr
    usual = fake_gapless("check", "-f", "json", "train.py")
    assert usual.stdout.startswith("printed")
    assert json.loads(usual.stdout.splitlines()[-1])


class Terminal:
    def isatty(self) -> bool:
        return True


def test_no_page_on_a_terminal():
    with pytest.raises(
        UsageError, match=r"a page is not for a terminal: gapless show -f html x > report\.html"
    ):
        _output.refuse_terminal("html", Terminal(), "gapless show -f html x")  # type: ignore[arg-type]
    _output.refuse_terminal("text", Terminal(), "")  # type: ignore[arg-type]
    _output.refuse_terminal("html", None, "")
