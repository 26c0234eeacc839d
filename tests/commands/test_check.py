"""`gapless check` from the outside, on a device that only counts."""

from __future__ import annotations

import json
import os

import pytest

TRAIN = """import gpu
gpu.wait(5)
for step in range(30):
    gpu.wait(2)
    if step % 3 == 0:
        gpu.wait()
    gpu.step()
gpu.evaluate()
gpu.wait(7)
"""


@pytest.fixture
def train(write):
    return write("train.py", TRAIN)


def words(text: str) -> str:
    return " ".join(text.split())


def test_report_and_progress(train, fake_gapless):
    process = fake_gapless("check", "--steps", "9", "train.py")
    assert process.returncode == 0
    said = words(process.stdout)
    assert said.startswith("2 to 3 syncs in every step. (counted on an emulated NVIDIA Counting Frame)")
    assert "train.py:4, 6 2.3 → 0 syncs" in said
    assert "9 steady steps, each ending with SGD.step" in said
    assert "GAP101 item-read 2× in every step train.py:4" in said
    assert "GAP101 item-read once every 3 steps train.py:6" in said
    assert "in set-up 5 train.py:2" in said
    assert "11 training steps ran; evaluation and checkpointing were not checked (`--steps all`)" in said
    assert process.stderr.splitlines()[0] == (
        "gapless: running train.py on an emulated Counting Frame until 9 steady steps"
    )
    assert process.stderr.splitlines()[1].startswith("gapless: stopped after 11 steps and ")


def test_quiet(train, fake_gapless):
    assert fake_gapless("check", "-q", "train.py").stderr == ""


def test_all_unfolds(train, fake_gapless):
    process = fake_gapless("check", "-q", "--steps", "all", "--all", "train.py")
    assert "│ gpu.wait(5)" in process.stdout
    assert "│ gpu.wait(7)" in process.stdout
    said = words(process.stdout)
    assert said.startswith("2 to 3 syncs in every step; 7 more in the one evaluation seen.")
    assert "GAP101 item-read 7× in the one evaluation seen train.py:9" in said
    assert "GAP101 item-read 5× in set-up train.py:2" in said
    assert "(`--steps all`)" not in said


def test_json_is_the_last_line(train, fake_gapless):
    process = fake_gapless("check", "-q", "-f", "json", "train.py")
    assert json.loads(process.stdout.splitlines()[-1])["steps"]["steady"] == 10


GATES = [
    ((), 0, ""),
    (("--max-waits", "3"), 0, ""),
    (("--max-waits", "2"), 1, "2.3 syncs per training step, over the limit of 2 (--max-waits)"),
    (("--max-waits", "0"), 1, "over the limit of 0 (--max-waits)"),
    (("--fail-on", "GAP101"), 1, "GAP101 at 2 lines (--fail-on)"),
    (("--fail-on", "gap1"), 1, "GAP101 at 2 lines (--fail-on)"),
    (("--fail-on", "GAP11,GAP12"), 0, ""),
]


@pytest.mark.parametrize(("options", "status", "reason"), GATES)
def test_gates(options, status, reason, train, fake_gapless):
    process = fake_gapless("check", "-q", *options, "train.py")
    assert process.returncode == status
    assert reason in process.stderr
    assert bool(reason) == bool(process.stderr)
    assert "2 to 3 syncs in every step" in words(process.stdout)


def test_set_up_and_evaluation_pass_a_gate(write, fake_gapless):
    write(
        "train.py", "import gpu\ngpu.wait()\nfor i in range(4):\n    gpu.step()\ngpu.evaluate()\ngpu.wait()\n"
    )
    process = fake_gapless("check", "-q", "--fail-on", "GAP1", "--max-waits", "0", "train.py")
    assert process.returncode == 0, process.stderr


def test_a_gate_without_steps_is_closed(write, fake_gapless):
    write("train.py", "print('nothing')\n")
    process = fake_gapless("check", "-q", "--max-waits", "5", "train.py")
    assert process.returncode == 1
    assert "no training step was seen" in process.stderr


def test_a_failing_script_keeps_its_status(write, fake_gapless):
    write("train.py", TRAIN + "raise SystemExit(9)\n")
    process = fake_gapless("check", "-q", "--steps", "all", "--max-waits", "0", "train.py")
    assert process.returncode == 9
    assert "over the limit" in process.stderr


def test_saved_and_shown_again(train, fake_gapless, python, tmp_path):
    process = fake_gapless("check", "-q", "-o", "run.gapless.json", "train.py")
    again = python("-m", "gapless", "show", "run.gapless.json")
    assert again.stdout == process.stdout.removeprefix("\n")


def test_unwritable_output_is_one_line(train, fake_gapless):
    process = fake_gapless("check", "-q", "-o", "no/run.json", "train.py")
    assert process.returncode == 3
    assert process.stderr.startswith("gapless: cannot write ")
    assert len(process.stderr.splitlines()) == 1


def test_a_session_that_cannot_be_saved_is_reported(train, fake_gapless, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    process = fake_gapless("check", "-q", "-o", "pipe", "train.py")
    assert (process.returncode, process.stderr.count("\n")) == (3, 1)
    assert process.stderr.endswith("pipe: nobody reads from this pipe\n")
    assert "train.py:4" in process.stdout


def test_rank_0_speaks_for_all_and_each_saves(train, fake_gapless, tmp_path):
    for rank in "01":
        process = fake_gapless(
            "check", "--max-waits", "0", "-o", "run.gapless.json", "train.py", RANK=rank, WORLD_SIZE="2"
        )
        assert process.returncode == (1 if rank == "0" else 0)
        assert ("in every step" in process.stdout) == (rank == "0")
        assert ("running" in process.stderr) == (rank == "0")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "run.gapless.json",
        "run.rank1.gapless.json",
        "train.py",
    ]


def test_a_script_that_calls_itself_rank_1_is_still_reported(write, fake_gapless):
    write("train.py", "import os\nos.environ.update(RANK='1', WORLD_SIZE='2')\n")
    assert "No syncs in train.py, but no training step was seen" in words(
        fake_gapless("check", "-q", "train.py").stdout
    )


def test_colour_on_request_only(train, fake_gapless):
    assert "\x1b" not in fake_gapless("check", "train.py").stdout
    assert "\x1b[" in fake_gapless("check", "train.py", FORCE_COLOR="1", TERM="xterm-256color").stdout
    for plain in (("--no-color",), ()):
        process = fake_gapless(
            "check", *plain, "train.py", FORCE_COLOR="1", TERM="xterm", **({} if plain else {"NO_COLOR": "1"})
        )
        assert "\x1b" not in process.stdout


def test_terminals_without_unicode(write, fake_gapless):
    write("train.py", "import gpu\nfor i in range(5):\n    gpu.wait()  # é\n    gpu.step()\n")
    process = fake_gapless("check", "-q", "train.py", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert process.returncode == 0
    assert "| gpu.wait()  # \\xe9" in process.stdout
