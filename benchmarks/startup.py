"""What `gapless check` costs before and after the script: an empty script, beside ``import torch`` alone."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import _sheet

MAX_RATIO = 1.3
"""Bound on an empty script's cost relative to ``import torch``, in wall and CPU time."""


def cost(words: list[str], folder: str) -> tuple[float, float]:
    """Return the seconds of wall and CPU time that a command takes, children included."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = os.path.join(folder, "compiled")  # as what is installed
    before, began = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *words], cwd=folder, env=env, check=True, capture_output=True)
    wall, after = time.perf_counter() - began, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return wall, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    commands = {
        "`import torch`": ["-c", "import torch"],
        "`gapless check empty.py`": ["-m", "gapless", "check", "empty.py"],
        "`gapless --version`": ["-m", "gapless", "--version"],
    }
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "empty.py").write_text("")
        for words in commands.values():  # to compile, and to have the files in memory
            cost(words, folder)
        for _ in range(rounds):
            for name, words in commands.items():
                took[name].append(cost(words, folder))
    medians = {name: list(map(statistics.median, zip(*runs, strict=True))) for name, runs in took.items()}
    torch_wall, torch_cpu = next(iter(medians.values()))
    rows = [
        [name, f"{wall:.2f}", f"{cpu:.2f}", f"{wall / torch_wall:.2f}", f"{cpu / torch_cpu:.2f}"]
        for name, (wall, cpu) in medians.items()
    ]
    wall, cpu = medians["`gapless check empty.py`"]
    worst = max(wall / torch_wall, cpu / torch_cpu)
    text = _sheet.header(
        "Start-up of `gapless check`",
        "python benchmarks/startup.py",
        f"a process for each run, commands in turn, medians of {rounds}; CPU time is user and system time",
    )
    text += _sheet.table(["command", "wall s", "CPU s", "× torch, wall", "× torch, CPU"], rows)
    text += (
        f"\nThe bound for an empty script is {MAX_RATIO} × `import torch`: "
        f"{'kept' if worst <= MAX_RATIO else 'exceeded'} ({worst:.2f}).\n"
    )
    print(_sheet.write("startup", text).read_text())


if __name__ == "__main__":
    main()
