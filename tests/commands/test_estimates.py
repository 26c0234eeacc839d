"""`gapless check` with and without prices, from the outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

TRAIN = """\
import torch

model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    loss = model(torch.randn(32, 64, device="cuda")).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


@pytest.fixture
def train(write):
    return write("train.py", TRAIN)


def document(process):
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


def test_prices_are_estimated_and_shown_again(train, python, tmp_path):
    checked = document(
        python("-m", "gapless", "check", "-q", "--steps", "3", "-f", "json", "-o", "run.json", "train.py")
    )
    of = checked["estimate"]
    assert of["gpu"] == "NVIDIA A100-SXM4-80GB"
    assert 0 < of["device"] < of["step"]["likely"] < 10_000_000
    (price,) = [finding["price"] for finding in checked["findings"] if finding["price"]]
    assert 0 <= price["last"] < of["step"]["likely"]
    assert (tmp_path / "run.json").stat().st_size < 200_000
    again = document(python("-m", "gapless", "show", "-f", "json", "run.json"))
    assert again["estimate"] == of
    assert again["findings"] == checked["findings"]


def test_no_prices(train, python):
    checked = document(
        python("-m", "gapless", "check", "-q", "--steps", "1", "--no-prices", "-f", "json", "train.py")
    )
    assert checked["estimate"] is None
    assert all(finding["price"] is None for finding in checked["findings"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--calibrate", "train.py"], "is not a profile to calibrate with"),
        (["--calibrate", "train.py", "--no-prices"], "remove --no-prices"),
        (["--calibrate", "missing.json"], "cannot read missing.json"),
    ],
    ids=["no profile", "no prices", "missing"],
)
def test_what_cannot_be_calibrated_with_is_said_before_the_script_runs(train, python, words, message):
    process = python("-m", "gapless", "check", *words, "train.py")
    assert process.returncode in (2, 3)
    assert message in process.stderr
    assert process.stdout == ""


EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "segmentation"


def test_every_wait_of_the_segmentation_example_has_a_price(python):
    """And the stage without waits has none to price; its step is estimated all the same."""
    sizes = ("--workers", "0", "--size", "48", "--batch", "2", "--steps", "5")
    checked = {}
    for stage in ("original", "step3_ignore_index"):
        script = str(EXAMPLES / f"{stage}.py")
        words = ("-m", "gapless", "check", "-q", "--no-loader", "--steps", "2", "-f", "json", script, *sizes)
        checked[stage] = document(python(*words))
    inside = [
        finding for finding in checked["original"]["findings"] if finding["frequency"]["when"] == "every-step"
    ]
    assert sum(len(finding["spots"]) or 1 for finding in inside) == 6  # one of them in backward of another
    assert all(finding["price"]["last"] > 0 for finding in inside)
    assert checked["original"]["estimate"]["prices"]["all"] > max(
        finding["price"]["last"] for finding in inside
    )
    after = checked["step3_ignore_index"]["estimate"]
    assert after["prices"]["all"] == 0
    assert 0 < after["step"]["likely"] < checked["original"]["estimate"]["step"]["likely"]
