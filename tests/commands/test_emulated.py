"""`gapless check` on the emulated device itself, from the outside."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

TRAIN = """\
import torch

def main():
    model = torch.nn.Linear(8, 2).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = 0.0
    for step in range(40):
        x = torch.randn(4, 8, device="cuda")
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        if step % 5 == 0:
            print("loss", loss.item())
        selected = x[x > 0]
    model.eval()
    with torch.no_grad():
        print("evaluation", model(x).sum().item())

main()
"""


@pytest.fixture
def train(write):
    return write("train.py", TRAIN)


def findings(document):
    return {
        (finding["line"]["line"], finding["code"]): (
            finding["frequency"]["when"],
            finding["frequency"]["waits"],
        )
        for finding in document["findings"]
    }


def test_a_script_is_found_out(train, python):
    process = python("-m", "gapless", "check", "-q", "-f", "json", "--gpu", "h100", "train.py")
    assert process.returncode == 0, process.stderr
    document = json.loads(process.stdout.splitlines()[-1])
    assert findings(document) == {
        (13, "GAP101"): ("every-step", 1),
        (16, "GAP112"): ("every-step", 1),
        (15, "GAP101"): ("some-steps", 1),
        (4, "GAP127"): ("set-up", 2),
    }
    assert document["steps"]["source"] == "SGD.step"
    assert document["steps"]["waits_per_step"] == pytest.approx(2.2)
    assert "H100" in document["environment"]["device"]
    assert document["ending"]["how"] == "enough-steps"


def test_the_whole_run(train, python):
    process = python("-m", "gapless", "check", "-q", "-f", "json", "--steps", "all", "train.py")
    assert process.stdout.startswith("loss")
    document = json.loads(process.stdout.splitlines()[-1])
    assert findings(document)[19, "GAP101"] == ("evaluation", 1)
    assert document["steps"]["seen"] == 40
    assert document["ending"]["how"] == "finished"


def test_no_such_gpu(train, python):
    process = python("-m", "gapless", "check", "--gpu", "voodoo2", "train.py")
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.startswith("gapless: unknown GPU 'voodoo2'")


def test_two_ranks_under_torchrun(write, python, tmp_path):
    write(
        "train.py",
        """\
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
model = DistributedDataParallel(torch.nn.Linear(8, 2).to(rank), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    loss = model(torch.randn(4, 8, device=rank)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()
""",
    )
    words = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "gapless")
    process = python("-m", *words, "check", "-q", "-o", "run.gapless.json", "train.py")
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("1 sync in every step") == 1
    assert sorted(path.name for path in tmp_path.glob("*.json")) == [
        "run.gapless.json",
        "run.rank1.gapless.json",
    ]
