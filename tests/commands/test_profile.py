"""`gapless profile` from the outside: the profiler is real, the GPU is only in the files it writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import fork_server
import pytest
from conftest import HERE

from gapless.commands.profile import ProfileConclusion
from gapless.errors import UnreadableInput
from gapless.model import Ending, Environment, Session

TRAIN = """import sys
import torch

net = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def read(loss):
    total = 0.0
    total += loss.item()
    return total


def train(steps):
    for step in range(steps):
        if step == fails_at:
            raise ValueError("no luck")
        optimizer.zero_grad()
        loss = net(torch.randn(32, 64)).sum()
        loss.backward()
        read(loss)
        optimizer.step()


fails_at = int(sys.argv[2])
train(int(sys.argv[1]))
print("trained")
sys.exit(int(sys.argv[3]))
"""
SHORT = ("--wait", "1", "--warmup", "1", "--active", "3", "-q")
FOLDER = Path("gapless-profile")


@pytest.fixture
def profile(write, python):
    """``profile(*options, script=…)`` profiles a training that would run for 100 steps."""
    write("train.py", TRAIN)

    def run(*options, script=("100", "-1", "0"), **environment):
        command = str(HERE / "fake_profiler.py")
        return python(command, "profile", *SHORT, *options, "train.py", *script, **environment)

    return run


def words(text: str) -> str:
    return " ".join(text.split())


def test_recorded_stopped_and_explained(profile, python, tmp_path):
    process = profile("--all")
    assert process.returncode == 0
    assert "trained" not in process.stdout
    text = words(process.stdout)
    assert "(NVIDIA Paper Tiger, 3 steps)" in text
    assert " gapless-profile/times/rank0.pt.trace.json.gz " in text
    assert "train.py:10 in read │ total += loss.item()" in text
    assert "Times come from steps recorded without Python stacks" in text
    assert "all of the operators were found in both" in text
    kept = sorted(str(path.relative_to(tmp_path / FOLDER)) for path in (tmp_path / FOLDER).rglob("*.*"))
    assert kept == [
        "profile.gapless.json",
        "rank0.files",
        "stacks/rank0.pt.trace.json.gz",
        "times/rank0.pt.trace.json.gz",
    ]
    folder = python("-m", "gapless", "trace", "-q", "-f", "json", str(FOLDER))
    assert folder.returncode == 0
    (record,) = [json.loads(line) for line in folder.stdout.splitlines()]
    assert "train.py" in json.dumps(record["findings"])
    assert any("recorded without Python stacks" in note for note in record["notes"])
    assert not any("left out" in note for note in record["notes"])
    again = python("-m", "gapless", "show", "--all", str(FOLDER / "profile.gapless.json"))
    assert words(again.stdout).partition("note:")[0] == text.partition("note:")[0]


def test_lines_of_a_script_elsewhere(write, python):
    write("deep/train.py", "import os\nos.chdir('/')\n" + TRAIN)
    command = (str(HERE / "fake_profiler.py"), "profile", *SHORT, "--all", "deep/train.py", "100", "-1", "0")
    process = python(*command)
    assert process.returncode == 0, process.stderr
    assert "train.py:12 in read │ total += loss.item()" in words(process.stdout)


def test_json_and_a_bound(profile, tmp_path):
    process = profile("-f", "json", "--fail-on", "GAP1", "--no-prices", "-o", "elsewhere/of/it")
    report = json.loads(process.stdout.strip().splitlines()[-1])
    assert report["profile"]["recording"]["stacks"] == "frames"
    assert "GAP101" in {finding["code"] for finding in report["findings"]}
    assert process.returncode == 1
    assert "(--fail-on)" in process.stderr
    assert (tmp_path / "elsewhere/of/it/times/rank0.pt.trace.json.gz").exists()


def test_a_script_that_fails_keeps_its_status_and_what_was_recorded(profile):
    process = profile(script=("100", "4", "0"))
    assert process.returncode == 1
    assert "ValueError: no luck" in process.stderr.splitlines()
    assert "gapless/" not in process.stderr
    text = words(process.stdout)
    assert "2 steps" in text or "3 steps" in text
    assert "The script ended after 2 recorded steps of 3" in text
    assert "Lines are unknown: no steps were recorded with Python stacks" in text


@pytest.mark.parametrize(("status", "message"), [("0", 3), ("7", 7)])
def test_a_script_that_ends_too_early(profile, status, message, tmp_path):
    process = profile(script=("2", "-1", status))
    assert process.returncode == message
    assert "trained" in process.stdout
    assert process.stderr.count("nothing was recorded: the script ended after 2 steps") == 1
    assert not list((tmp_path / FOLDER).rglob("*.gz"))


def test_two_ranks_are_explained_together(write, tmp_path):
    write("train.py", TRAIN)
    command = (str(HERE / "fake_profiler.py"), "profile", *SHORT, "train.py", "100", "-1", "0")
    first, second = fork_server.ranks(2, command, tmp_path)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert second.stdout == ""
    assert re.match(r"The GPU of rank [01] \(of 2 in these files\) idles", first.stdout.strip())
    names = sorted(path.name for path in (tmp_path / FOLDER / "times").iterdir())
    assert names == ["rank0.pt.trace.json.gz", "rank1.pt.trace.json.gz"]
    saved = json.loads((tmp_path / FOLDER / "profile.gapless.json").read_text())
    assert len(saved["profiles"]) == 2
    assert len({entry["launch"] for entry in saved["profiles"]}) == 1
    assert not list((tmp_path / FOLDER).glob(".*"))


def test_without_a_gpu(write, python):
    write("train.py", TRAIN)
    process = python("-m", "gapless", "profile", "train.py", CUDA_VISIBLE_DEVICES="")
    assert process.returncode == 2
    assert process.stdout == ""
    assert len(process.stderr.strip().splitlines()) == 2
    assert "gapless check" in process.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["train.py"], "no such file: train.py"),
        ([], "no script given"),
        (["--active", "0", "x.py"], "active"),
    ],
)
def test_usage(python, options, message):
    process = python(str(HERE / "fake_profiler.py"), "profile", *options)
    assert process.returncode == 2
    assert message in process.stderr


class Clock:
    """Goes on only when somebody sleeps."""

    now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def __call__(self) -> float:
        return self.now


def test_ranks_that_never_come_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "4")
    conclusion = ProfileConclusion.__new__(ProfileConclusion)
    said = []
    conclusion.progress = type("Progress", (), {"waiting": lambda self, missing: said.append(missing)})()
    conclusion.recipe = type("Recipe", (), {"folder": tmp_path})()
    for rank in (0, 2):
        (tmp_path / f".rank{rank}.ended").touch()
    clock = Clock()
    assert conclusion._wait_for_others(40.0, clock.sleep, clock) == ["no word from 2 ranks: 1, 3"]
    assert said == [2]
    assert 39 < clock.now < 42
    assert not list(tmp_path.iterdir())


def test_another_rank_that_fails_names_its_profile(profile, tmp_path):
    process = profile(script=("100", "6", "0"), RANK="1", WORLD_SIZE="2")
    path = FOLDER / "times/rank1.pt.trace.json.gz"
    *lines, line = process.stderr.splitlines()
    assert "ValueError: no luck" in lines
    assert line == f"gapless: rank 1 failed; its profile is saved: gapless trace {path}"
    assert (tmp_path / path).exists()


@pytest.mark.parametrize(("how", "most"), [("interrupted", 15), ("finished", 60)])
def test_rank_0_does_not_wait_for_others_until_it_is_killed(how, most, monkeypatch, tmp_path):
    waited = []
    conclusion = ProfileConclusion.__new__(ProfileConclusion)
    conclusion._wait_for_others = lambda seconds: waited.append(seconds) or []
    conclusion.recipe = type("Recipe", (), {"folder": tmp_path, "passes": ("times",)})()
    conclusion.profiling = type("Profiling", (), {"why_nothing": lambda self: "nothing"})()
    with pytest.raises(UnreadableInput):
        conclusion._explain(
            Session(script=("train.py",), environment=Environment(device=""), ending=Ending(how=how))
        )
    assert waited == [pytest.approx(most, rel=0.4)]
