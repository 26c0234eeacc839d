"""`gapless check --world-size`: what is refused before anything runs."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--rank", "1", "train.py"), "--rank R needs --world-size N"),
        (("--world-size", "4", "--rank", "4", "train.py"), "rank 4 is not one of 4 ranks, which are 0 to 3"),
        (
            ("--world-size", "4", "-m", "torch.distributed.run", "train.py"),
            "torch.distributed.run starts ranks",
        ),
        (("--world-size", "0", "train.py"), "0 is not in the range"),
    ],
)
def test_refusals(options, said, write, python):
    write("train.py", "print('ran')\n")
    process = python("-m", "gapless", "check", *options)
    assert process.returncode == 2
    assert said in " ".join(process.stderr.split())
    assert "ran" not in process.stdout


def test_a_script_named_like_a_launcher_is_none(write, python):
    write("accelerate_loop.py", "import os\nprint(os.environ['RANK'], os.environ['WORLD_SIZE'])\n")
    process = python("-m", "gapless", "check", "-q", "--world-size", "4", "--rank", "3", "accelerate_loop.py")
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[0] == "3 4"


def test_a_launcher_beside_it_is_refused(write, python):
    write("train.py", "print('ran')\n")
    process = python("-m", "gapless", "check", "--world-size", "4", "train.py", WORLD_SIZE="2", RANK="0")
    assert process.returncode == 2
    assert "a launcher has started this process as one of 2 ranks" in " ".join(process.stderr.split())
