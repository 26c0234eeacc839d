"""Pages from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from memory_runs import diagnosed, trained
from pages import Page, assert_sound
from sessions import Simulation
from trace_builder import training

from gapless.commands import _output, main
from gapless.errors import UsageError
from gapless.model.loading import save as save_diagnosis
from gapless.model.memory import save
from gapless.model.profile import load
from gapless.model.session import save as save_session

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
    assert "No timeline: it is drawn" in run(capsys, "show", "-f", "html", small)[1]
    assert Page(run(capsys, "show", "-f", "html", drawn)[1]).data is not None


def test_ranks_are_side_by_side(capsys, tmp_path):
    for rank in range(2):
        training(steps=3, rank=rank).write(tmp_path / f"rank{rank}.json")
    status, out, _ = run(capsys, "trace", "-f", "html", tmp_path)
    page = Page(out)
    assert status == 0
    assert_sound(page)
    assert any(id.startswith("numbers-rank") for id in page.ids)


def test_two_runs_are_one_page(capsys, trace, tmp_path):
    other = training(steps=4).write(tmp_path / "again.json")
    status, out, err = run(capsys, "trace", "-f", "html", trace, other)
    assert (status, err) == (0, "")
    page = Page(out)
    assert_sound(page)
    assert {"run1", "run1-timeline", "run2-timeline"} <= set(page.ids)
    assert "2 profiles: " in page.text
    kept = tmp_path / "kept.json"
    run(capsys, "trace", "-f", "html", "-o", kept, trace)
    assert "run2" in Page(run(capsys, "show", "-f", "html", kept, kept)[1]).ids


def test_memory_is_a_page(capsys, tmp_path):
    kept = tmp_path / "run.json"
    save([trained(4)], kept)
    status, out, err = run(capsys, "memory", "-f", "html", "--try", "expandable_segments:True", kept)
    assert (status, err) == (0, "")
    page = Page(out)
    assert_sound(page)
    assert page.drawn("memory")["others"][0]["name"] == "expandable_segments:True"
    assert run(capsys, "memory", "-f", "html", "--limit", "100MB", kept)[0] == 1


def test_a_session_with_memory_is_shown_with_it(capsys, tmp_path):
    kept = tmp_path / "session.json"
    save_session(Simulation().session(memory=(trained(4),)), kept)
    status, out, _ = run(capsys, "show", "-f", "html", kept)
    assert status == 0
    assert_sound(Page(out))
    assert Page(out).drawn("memory")["windows"]
    data = json.loads(run(capsys, "show", "-f", "json", kept)[1])
    assert data["memory"][0]["track"] is None
    assert any(id.startswith("numbers-at-the-peak") for id in Page(out).ids)


def test_a_loader_is_a_page(capsys, tmp_path):
    kept = tmp_path / "loader.json"
    save_diagnosis(diagnosed(), kept)
    status, out, err = run(capsys, "loader", "-f", "html", kept)
    assert (status, err) == (0, "")
    assert_sound(Page(out))


PRINTING = """
import os, sys
from gapless.commands import loader, main
from memory_runs import diagnosed

def measured(*wishes):
    print("printed", flush=True)
    os.write(1, b"written")
    return diagnosed()

loader._measure = measured
sys.exit(main(["loader", "-f", "html", "data.py:make"]))
"""


def test_what_the_loader_prints_is_not_on_the_page():
    tests = str(Path(__file__).parents[1])
    words = [sys.executable, "-c", PRINTING]
    done = subprocess.run(
        words, capture_output=True, encoding="utf-8", timeout=60, env={**os.environ, "PYTHONPATH": tests}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("<!doctype html>")
    assert_sound(Page(done.stdout))
    assert "printed" in done.stderr
    assert "written" in done.stderr


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


def test_no_page_on_a_terminal(monkeypatch):
    page, text = (_output.Shown(form) for form in ("html", "text"))
    monkeypatch.setattr("sys.stdout", Terminal())
    with pytest.raises(
        UsageError, match=r"an HTML page is not for a terminal: gapless show -f html x > report\.html"
    ):
        page.refuse_terminal("gapless show -f html x")
    assert text.refuse_terminal("") is None
    monkeypatch.setattr("sys.stdout", None)
    assert page.refuse_terminal("") is None
