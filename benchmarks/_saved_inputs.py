"""The files that `damaged_files.py` damages: what Gapless and PyTorch's recorders save, made anew."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS))

from memory_runs import diagnosed, trained
from trace_builder import training

from gapless.memory.export import export
from gapless.model.loading import save as save_diagnosis
from gapless.model.memory import save as save_memory

SECONDS = 300
"""Time limit of a command that makes a file, s."""

TRAIN = """
import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
batches = DataLoader(data, batch_size=8)
for epoch in range(3):
    for x, y in batches:
        optimizer.zero_grad()
        loss = ((model(x.cuda()) - y.cuda()) ** 2).mean()
        loss.backward()
        optimizer.step()
        print(loss.item())
    model.eval()
    print(model(torch.ones(2, 8, device="cuda")).sum().item())
    model.train()
"""
RACE = """
import torch

side = torch.cuda.Stream()
weight = torch.ones(4, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(8):
    with torch.cuda.stream(side):
        x = torch.ones(4, device="cuda") * 2
    loss = (weight * x).sum()
    loss.backward()
    optimizer.step()
    if (loss > 3).any():
        print(torch.nonzero(x))
"""
LOSSES = """
import torch

def plain(x): return x[x > 0].sum()
def fixed(x): return torch.where(x > 0, x, 0).sum()
def batches(): return [(torch.linspace(-1, 1, 8),)]
"""
COMMANDS = {
    "session": ["check", "--no-loader", "train.py"],
    "session_memory": ["check", "--memory", "--no-loader", "train.py"],
    "session_graphs": ["check", "--graphs", "--no-loader", "train.py"],
    "session_dry": ["check", "--dry", "--no-loader", "train.py"],
    "session_loader": ["check", "--loader-budget", "2", "train.py"],
    "session_race": ["check", "race.py"],
    "profile": ["trace", "rank0.json"],
    "profile_ranks": ["trace", "rank0.json", "rank1.json"],
}
"""Commands that make each file, without ``-o``; memory runs and diagnoses are made in code."""
PRINTED = {
    "report": ["show", "-f", "json", "session.json"],
    "comparison": ["compare", "-f", "json", "session.json", "session_graphs.json"],
    "proof": [
        *("compare", "-q", "-f", "json", "--seconds", "0.1", "--inputs", "losses.py:batches"),
        *("losses.py:plain", "losses.py:fixed"),
    ],
}
"""Commands printing JSON that could be mistaken for a saved file."""


def make(folder: Path) -> list[Path]:
    """Make the files in `folder`, add saved ones of earlier versions, and return their paths."""
    (folder / "train.py").write_text(TRAIN)
    (folder / "race.py").write_text(RACE)
    (folder / "losses.py").write_text(LOSSES)
    for rank in range(2):
        (folder / f"rank{rank}.json").write_bytes(training(steps=4 + rank).text())
    (folder / "old.json.gz").write_bytes(gzip.compress(training("old", steps=3).text()))
    save_diagnosis(diagnosed(), folder / "loader.json")
    save_memory((trained(),), folder / "memory.json")
    save_memory((trained(4), trained(3, "critic")), folder / "memory_ranks.json")
    export(trained(4), folder / "snapshot.pickle")
    for name, words in COMMANDS.items():
        _run_gapless(folder, [words[0], "-q", "-o", f"{name}.json", *words[1:]])
    for name, words in PRINTED.items():
        (folder / f"{name}.json").write_bytes(_run_gapless(folder, words))
    earlier = sorted((TESTS / "model" / "saved").glob("*.json"))
    for file in earlier:
        shutil.copy(file, folder / f"earlier_{file.name}")
    names = [*COMMANDS, *PRINTED, "memory", "memory_ranks", "loader", "rank0"]
    return [
        *(folder / f"{name}.json" for name in names),
        folder / "old.json.gz",
        folder / "snapshot.pickle",
        *(folder / f"earlier_{file.name}" for file in earlier),
    ]


def _run_gapless(folder: Path, words: Sequence[str]) -> bytes:
    command = [sys.executable, "-m", "gapless", *words]
    ended = subprocess.run(command, cwd=folder, capture_output=True, timeout=SECONDS, check=False)
    if ended.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(words)} failed: {ended.stderr.decode()}")
    return ended.stdout
