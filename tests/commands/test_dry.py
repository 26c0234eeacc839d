"""``gapless check --dry``: at its real size, with what was assumed, and with what the user says instead."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gapless.commands import main

SCRIPT = """
    import torch
    from torch import nn
    model = nn.Sequential(nn.Linear(20_000, 30_000), nn.Linear(30_000, 1_000)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    skipped = 0
    for step in range(6):
        x = torch.randn(256, 20_000, device="cuda")
        loss = model(x).logsumexp(-1).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if loss.item() > 100:
            skipped += 1
    print(skipped, torch.cuda.max_memory_allocated() > 8 << 30)
"""


FAILING = """
    import torch
    model = torch.nn.Linear(4096, 4096).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        y = model(torch.randn(512, 4096, device="cuda"))
        far = (y - y.clone()).abs().max().item()
        assert far == 0, far
        y.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    print("trained")
"""


def check(python: Callable[..., Any], *words: str) -> Any:
    return python(
        "-m", "gapless", "check", "-q", "--steps", "all", "--no-loader", "--no-prices", *words, "train.py"
    )


def test_a_model_of_many_gigabytes_is_checked_and_the_report_says_what_was_assumed(
    python: Callable[..., Any], write: Callable[[str, str], Path]
) -> None:
    write("train.py", textwrap.dedent(SCRIPT))
    words = ("--steps", "all", "--no-loader", "--no-prices", "-f", "json", "train.py")
    done = python("-m", "gapless", "check", "--dry", *words)
    assert done.returncode == 0, done.stderr
    assert "numbers that the script prints are assumed (--values computes them)" in done.stderr
    printed, *_, report = done.stdout.strip().splitlines()
    assert printed == "0 True"
    data = json.loads(report)
    assert data["environment"]["dry"]
    assert data["steps"]["waits_per_step"] == 1
    (assumed,) = data["assumptions"]
    assert (assumed["kind"], assumed["stack"][0]["line"], assumed["times"]) == ("float", 13, 6)
    assert 5 < assumed["value"] < 10  # the logarithm of a thousand and something
    assert any("train.py:13" in line and "--assume" in line for line in data["not_seen"])


def test_the_user_says_what_is_read(python: Callable[..., Any], write: Callable[[str, str], Path]) -> None:
    write("train.py", textwrap.dedent(SCRIPT))
    done = check(python, "--dry", "--assume", "train.py:13=1000", "--assume", "train.py:7=0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("6 True\n")
    assert "and so is" not in done.stdout
    assert "train.py:7: no value without data was read" in " ".join(done.stdout.split())


def test_a_script_that_takes_long_goes_on_without_values_and_one_that_does_not_keeps_them(
    python: Callable[..., Any], write: Callable[[str, str], Path]
) -> None:
    write("train.py", textwrap.dedent(SCRIPT))
    words = ("--steps", "all", "--no-loader", "--no-prices", "-f", "json", "train.py")
    done = python("-m", "gapless", "check", *words)
    assert done.returncode == 0, done.stderr
    assert "no values from train.py:4 on" in done.stderr
    data = json.loads(done.stdout.strip().splitlines()[-1])
    assert data["environment"]["dry"]
    assert data["switch"]["line"]["line"] == 4
    assert data["steps"]["waits_per_step"] == 1
    assert any(
        "from train.py:4 on are assumed (`--values` computes them)" in note for note in data["not_seen"]
    )

    write("train.py", textwrap.dedent(SCRIPT).replace("0_000", "").replace("1_000", "10").replace("16", "4"))
    small, valued = (python("-m", "gapless", "check", "-q", *more, *words) for more in ((), ("--values",)))
    assert small.stdout.splitlines()[0] == valued.stdout.splitlines()[0] == "0 False"
    measured, other = (json.loads(done.stdout.strip().splitlines()[-1]) for done in (small, valued))
    for report in (measured, other):
        assert not report["environment"]["dry"]
        assert report["switch"] is None
    assert measured["findings"] == other["findings"]


def test_a_script_that_fails_on_an_assumed_value_is_run_again_with_values(
    python: Callable[..., Any], write: Callable[[str, str], Path]
) -> None:
    write("train.py", textwrap.dedent(FAILING))
    done = python(
        "-m", "gapless", "check", "--assume", "train.py:99=1", "--no-loader", "-f", "json", "train.py"
    )
    assert done.returncode == 0, done.stderr
    assert "running it again with values" in done.stderr
    assert "trained" not in done.stdout  # what it prints is not shown twice
    data = json.loads(done.stdout.strip().splitlines()[-1])
    assert not data["environment"]["dry"]
    assert data["steps"]["seen"] == 4
    assert data["failed_dry"]["where"] == "train.py:8"
    assert "train.py:7" in data["failed_dry"]["assumed"][0]
    assert data["verdict"].startswith("Checked with values: without them the script failed at train.py:8. ")
    assert "AssertionError" in " ".join(data["why"])


def test_a_dry_run_that_is_asked_for_says_first_that_an_assumed_value_may_be_why_it_failed(
    python: Callable[..., Any], write: Callable[[str, str], Path]
) -> None:
    write("train.py", textwrap.dedent(FAILING))
    done = check(python, "--dry")
    assert done.returncode == 1
    words = " ".join(done.stdout.split())
    assert words.startswith(
        "Without values the script failed at train.py:8, probably because of an assumed value: check it with "
        "`--values`, or say what to assume: `--assume train.py:7=VALUE`."
    )
    done = check(python, "--dry", "--assume", "train.py:7=0")
    assert done.returncode == 0, done.stderr
    assert "trained" in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--values", "--assume", "train.py:3=1"), "remove --values"),
        (("--dry", "--assume", "train.py=1"), "FILE:LINE=VALUE"),
        (("--dry", "--assume", "train.py:3=maybe"), "FILE:LINE=VALUE"),
        (("--dry", "--assume", "train.py:3"), "FILE:LINE=VALUE"),
    ],
)
def test_what_is_assumed_is_written_in_one_way(
    words: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('ran')\n")
    assert main(["check", *words, str(script)]) == 2
    output = capsys.readouterr()
    assert says in output.err
    assert "ran" not in output.out
