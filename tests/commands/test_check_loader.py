"""`gapless check` on scripts whose loaders are late, restarted, wrong, or simply good."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
from conftest import finish, start

from gapless.model.session import load

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be copied here")

TRAIN = """\
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Photos(Dataset):
    def __len__(self):
        return 200
    def __getitem__(self, index):
        time.sleep(float(sys.argv[1]))
        return torch.full((64,), float(index))

class Lines(IterableDataset):
    def __iter__(self):
        for index in range(60):
            yield torch.full((64,), float(index))

def train():
    kind = Lines() if sys.argv[2] == "stream" else Photos()
    loader = DataLoader(kind, batch_size=4, num_workers=int(sys.argv[3]))
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(40)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in loader:
        model(batch.cuda()).pow(2).mean().backward()
        optimizer.step()
        print(float(batch.sum()))

def spawned(rank):
    train()

if __name__ == "__main__":
    if sys.argv[2] == "spawn":
        torch.multiprocessing.spawn(spawned, nprocs=1)
        next(iter(DataLoader(Lines(), batch_size=4)))
    else:
        train()
"""
CHECK = ("-m", "gapless", "check", "--steps", "3", "--loader-budget", "1")


@pytest.fixture
def train(write) -> Path:
    return write("train.py", TRAIN)


def finding_of(document: dict, code: str) -> dict:
    (finding,) = [finding for finding in document["findings"] if finding["code"] == code]
    return finding


def line_of(code: str) -> int:
    return next(n for n, row in enumerate(TRAIN.splitlines(), 1) if row.strip().startswith(code))


def waits_for(fetch: dict) -> str:
    """What a batch is said to wait for: seen often enough, and nearly every time."""
    looks = fetch["waits"]
    most = max(looks, key=looks.get, default="")
    if sum(looks.values()) < 5 or looks[most] < 0.8 * sum(looks.values()):
        return "waiting"
    reasons = {"io": "I/O", "lock": "a lock", "process": "another process"}
    return "sleeping" if most == "sleep" else f"waiting for {reasons[most]}"


def test_a_late_loader_is_found_priced_saved_and_shown_again(train, python):
    process = python(*CHECK, "-f", "json", "-o", "run.json", "train.py", "0.005", "map", "0")
    assert process.returncode == 0, process.stderr
    assert "measuring the loader at train.py:19 (about 1 s; --no-loader skips this)" in process.stderr
    document = json.loads(process.stdout.splitlines()[-1])
    finding = finding_of(document, "GAP301")
    assert document["findings"][0] == finding  # what costs most comes first
    assert finding["line"]["line"] == line_of("loader = DataLoader(")
    (use,) = document["loaders"]
    fetch = use["diagnosis"]["fetch"]  # the whole measurement: `fetch` alone is the first, quick one
    cpu, wait = (sum(column) for column in zip(*fetch["batches"], strict=True))
    mostly = "nearly all of it " if cpu < 0.1 * (cpu + wait) else ""
    assert f"{mostly}{waits_for(fetch)};" in finding["evidence"][0]
    assert wait > cpu  # it sleeps
    assert "`time.sleep(float(sys.argv[1]))` (train.py:9)" in finding["evidence"][0]
    assert "with num_workers=0" in finding["evidence"][1]
    assert 15e6 < finding["price"]["last"] < max(sum(batch) for batch in fetch["batches"])
    step = document["estimate"]["step"]["likely"]
    # The step as it is holds all of the waiting: what workers would take of it, and what they would leave.
    late, left = use["late"]["likely"], use["left"]["likely"]
    assert finding["price"]["of"] == step + late
    assert finding["price"]["last"] == late - left
    assert finding["remedy"].startswith("`DataLoader(..., num_workers=")
    assert finding["remedy"].split("num_workers=")[1][0] != "0"
    again = python("-m", "gapless", "show", "-f", "json", "run.json")
    assert json.loads(again.stdout)["findings"] == document["findings"]
    # The measurement is there for the other commands, too.
    taken = python("-m", "gapless", "loader", "-f", "json", "run.json", "--step-ms", "1000")
    measured = json.loads(taken.stdout)["loader"]
    assert (measured["demand"]["step"], measured["dataset"]) == (1e9, "Photos")


def test_what_it_yields_wrongly_fails_the_gate(train, python):
    words = ("--loader-budget", "6", "-f", "json", "--fail-on", "GAP31", "train.py", "0", "stream", "2")
    process = python(*CHECK, *words)
    document = json.loads(process.stdout.splitlines()[-1])
    finding = finding_of(document, "GAP311")
    # Whether the end of the epoch was seen depends on how busy the machine is, and what it means does not.
    whole = "each of 2 workers yields all 60 items, so an epoch has 120"
    (evidence,) = finding["evidence"]
    assert evidence == whole or re.fullmatch(r"all 2 workers yield the same first \d+ items", evidence)
    assert finding["line"]["line"] == line_of("for index in range(60)") - 1
    assert process.returncode == 1
    assert "GAP311 at 1 line (--fail-on)" in process.stderr


def test_no_look_at_loaders(train, python):
    process = python(*CHECK, "--no-loader", "-f", "json", "-o", "run.json", "train.py", "0.005", "map", "0")
    assert "measuring" not in process.stderr
    codes = [finding["code"] for finding in json.loads(process.stdout.splitlines()[-1])["findings"]]
    assert not [code for code in codes if code.startswith("GAP3")]
    refused = python("-m", "gapless", "loader", "run.json")
    assert refused.returncode == 3
    assert refused.stderr.startswith("gapless: run.json holds no loader measurement: ")


def test_the_loader_of_a_process_that_the_script_starts(train, python):
    """That of this process, which fed no step, does not take its place, nor in what is saved."""
    process = python(*CHECK, "-f", "json", "-o", "run.json", "train.py", "0.005", "spawn", "0")
    assert process.returncode == 0, process.stderr
    data = json.loads(process.stdout.splitlines()[-1])
    assert finding_of(data, "GAP301")["line"]["line"] == 19
    assert "waiting for data" in data["verdict"]
    assert [loader["made"]["line"] for loader in data["loaders"]] == [19]
    again = json.loads(python("-m", "gapless", "show", "-f", "json", "run.json").stdout)
    assert finding_of(again, "GAP301") == finding_of(data, "GAP301")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_who_will_not_wait_gets_the_report_without(train, tmp_path, number, status):
    words = ("-m", "gapless", "check", "--steps", "3", "--loader-budget", "60")
    process = start(*words, "train.py", "0.005", "map", "0", cwd=tmp_path)
    assert process.stderr is not None
    for row in process.stderr:
        if "measuring the loader" in row:
            break
    process.send_signal(number)
    result = finish(process)
    assert result.returncode == status
    assert "GAP120 pageable-copy" in result.stdout
    assert "measuring the loaders was interrupted" in " ".join(result.stdout.split())
    assert "Traceback" not in result.stderr


def test_a_process_that_is_killed_while_loaders_are_measured_has_saved_its_session(write, python, tmp_path):
    deadly = "os.getpid() == SCRIPT or (os.kill(SCRIPT, signal.SIGKILL), os._exit(0))"
    changed = TRAIN.replace("time.sleep(float(sys.argv[1]))", deadly)
    write("train.py", f"import os, signal\nSCRIPT = os.getpid()\n{changed}")
    process = python(*CHECK, "-o", "run.json", "train.py", "0", "map", "0")
    assert process.returncode == -signal.SIGKILL
    assert len(load(str(tmp_path / "run.json")).marks) >= 3
    assert [path.name for path in tmp_path.glob("*.json*")] == ["run.json"]
