"""What the page of a long run's memory costs: its size, how soon it opens, and how it moves.

A training is made up whose batches vary in length, with all that it asks of the GPU's memory; the page of it
is opened from disk in headless Chromium and moved frame by frame.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import _sheet
from page import KINDS, chromium, measure_page

from gapless.memory.recorder import Recorder
from gapless.memory.sizes import MIB
from gapless.model.memory import MemoryRun, save
from gapless.model.source import SourceLine

LAYERS = 200


def training(events: int) -> MemoryRun:
    """Return at least `events` events: weights, and per step activations of its own length."""
    chance = random.Random(1)
    lines = [SourceLine(f"/work/model{n}.py", n, "forward", "y = layer(x)") for n in range(1, 41)]
    recorder, rows, now = Recorder(), 0, 0
    for number in range(60):
        line = lines[number % len(lines)]
        recorder.alloc(
            ("weight", number), chance.randint(1, 30) * MIB, stack=[line], kind="parameter", time=1
        )
        rows += 1
    while rows < events:
        length = chance.randint(64, 1024)
        for layer in range(LAYERS):
            now += 9_000
            size, line = 256 * length * chance.randint(1, 200), lines[layer % len(lines)]
            recorder.alloc(layer, size, stack=[line], kind="activation", time=now)
        for layer in reversed(range(LAYERS)):
            now += 9_000
            recorder.free(layer, time=now)
        recorder.step(time=now)
        rows += 2 * LAYERS + 1
    return recorder.run()


def row(events: int, folder: Path, browser: Any, rounds: int) -> list[object]:
    run = training(events)
    saved, target = folder / "run.json", folder / "memory.html"
    save([run], saved)
    words = [sys.executable, "-m", "gapless", "memory", "-q", "-f", "html"]
    words += ["--try", "expandable_segments:True", "--limit", "14GiB", str(saved)]
    began = time.perf_counter()
    with open(target, "wb") as file:
        subprocess.run(words, stdout=file, check=True)
    seconds = time.perf_counter() - began
    page = measure_page(browser, target, rounds, "memory")
    points = sum(len(window["event"]) for window in page["data"]["windows"])
    frames = [f"{mean:.0f} ({slow:.0f})" for mean, slow in page["frames"].values()]
    return [
        f"{len(run):,}",
        f"{seconds:.1f}",
        f"{target.stat().st_size / 1e6:.2f}",
        f"{points:,}",
        f"{statistics.median(page['opened']):.2f}",
        f"{max(page['opened']):.2f}",
        *frames,
    ]


COLUMNS = ["events", "made in, s", "page, MB", "points", "opens in, s", "slowest, s"]
COLUMNS += [f"frames/s, {kind} in view" for kind in KINDS]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, nargs="*", default=[10_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        rows = [row(events, Path(name), browser, options.rounds) for events in options.events]
        version = browser.version
    header = _sheet.header(
        "The page of a long run's memory",
        "python benchmarks/memory_page.py",
        f"a training with {LAYERS} activations in each step, of lengths that vary from step to step; "
        "`gapless memory -f html --try expandable_segments:True --limit 14GiB` from start to end; the page "
        f"opened from disk in headless Chromium {version} without a GPU, 1440 x 900, from the request to the "
        f"second frame after the picture is there, median and slowest of {options.rounds}; then moved "
        "over it for four seconds, one move each frame: frames per second, and in brackets those of the "
        "slowest twentieth (60 is the most there is)",
    )
    print(_sheet.write("memory_page", header + _sheet.table(COLUMNS, rows)).read_text())


if __name__ == "__main__":
    main()
