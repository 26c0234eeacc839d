"""How exactly snapshots are replayed, and how fast.

    python benchmarks/memory.py                 # speed alone
    python benchmarks/memory.py FOLDER          # and every snapshot in it: predicted beside recorded
    python benchmarks/memory.py FOLDER --write  # writes benchmarks/sheets/memory.md

Speed is that of a made-up training run with steps of variable length: events per second for a run and for
others 4 and 16 times as long, under several settings; then a search, on one process and on all cores.
Exits with 1 when a snapshot is not replayed exactly.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _sheet

from gapless.cores import usable_cores
from gapless.errors import UnreadableInput
from gapless.memory.recorder import Recorder
from gapless.memory.report import compare_with_recording
from gapless.memory.simulate import Simulation
from gapless.memory.snapshot import read
from gapless.memory.trials import TrialConditions, attempt_all, candidates
from gapless.model.memory import MemoryRun

EVENTS = 62_500
LAYERS = 24
SEED = 1
TOTAL = 24 << 30
SETTINGS = (
    "",
    "expandable_segments:True",
    "roundup_power2_divisions:8",
    "garbage_collection_threshold:0.6,per_process_memory_fraction:0.98",
)


def training(events: int) -> MemoryRun:
    """Return at least `events` events of training on sequences of 32 to 512 tokens."""
    draw = random.Random(SEED)
    recorder = Recorder()
    name = count = 0
    while count < events:
        length = draw.randrange(32, 512)
        kept: list[int] = []
        for _ in range(LAYERS):
            for width in (1, 4, 4, 1, 3):
                recorder.alloc(name, length * width * 1024 * draw.choice((2, 4, 4, 8)))
                recorder.alloc(name + 1, 4 * length * width)
                recorder.free(name + 1)
                kept.append(name)
                name, count = name + 2, count + 3
        for activation in reversed(kept):
            recorder.alloc(name, draw.randrange(512, 4 << 20))
            recorder.free(activation)
            recorder.free(name)
            name, count = name + 1, count + 3
        recorder.step()
        count += 1
    return recorder.run()


def least_seconds(
    work: Callable[[], Any], times: int = 3, clock: Callable[[], float] = time.process_time
) -> float:
    """Return the least of some tries; by default CPU time, which a busy machine does not change."""
    taken = []
    for _ in range(times):
        begin = clock()
        work()
        taken.append(clock() - begin)
    return min(taken)


def speed() -> str:
    rows: list[list[object]] = []
    for factor in (1, 4, 16):
        run = training(factor * EVENTS)
        for settings in SETTINGS:
            taken = least_seconds(
                lambda run=run, settings=settings: Simulation(run, settings, total=TOTAL).go()
            )
            rows.append(
                [f"{len(run):,}", settings or "default", f"{taken:.2f} s", f"{len(run) / taken / 1e3:.0f}"]
            )
    return _sheet.table(["events", "settings", "time", "thousand events per second"], rows)


def search() -> str:
    run = training(16 * EVENTS)
    wanted, where = candidates(True), TrialConditions(total=TOTAL, capacity=TOTAL)
    rows: list[list[object]] = []
    for jobs in sorted({1, usable_cores()}):
        busy = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "?"
        taken = least_seconds(lambda jobs=jobs: attempt_all(run, wanted, where, jobs), 1, time.perf_counter)
        rows.append([f"{len(run):,}", len(wanted), jobs, busy, f"{taken:.1f} s"])
    return _sheet.table(["events", "settings", "processes", "load before", "time"], rows)


def compare_snapshots(folder: Path) -> tuple[str, bool]:
    """Compare every snapshot in `folder` with its replay; return the table, and whether all are exact."""
    rows: list[list[object]] = []
    exact = True
    for path, run in _runs(folder):
        replay = Simulation(run)
        taken = least_seconds(replay.go, 1)
        outcome, recorded, exactness = replay.outcome(), run.recorded, compare_with_recording(run, replay)
        assert recorded is not None
        exact &= exactness.exact
        retries = recorded.retries if recorded.retries >= 0 else "?"
        rows.append(
            [
                path.name,
                f"{len(run):,}",
                f"{outcome.mallocs} / {recorded.mallocs}",
                f"{outcome.frees} / {recorded.frees}",
                f"{outcome.retries} / {retries}",
                f"{outcome.peak_reserved:,} / {recorded.peak_reserved:,}",
                f"{outcome.final_reserved:,} / {recorded.final_reserved:,}",
                f"{exactness.addresses} / {exactness.allocations}",
                f"{1e3 * taken:.0f} ms",
            ]
        )
    columns = ["snapshot", "events", "cudaMalloc", "cudaFree", "retries", "peak reserved", "final reserved"]
    return _sheet.table([*columns, "addresses", "time"], rows), exact


def _runs(folder: Path) -> Iterator[tuple[Path, MemoryRun]]:
    for path in sorted(folder.glob("*.pickle")):
        try:
            runs = read(str(path))
        except UnreadableInput as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        for run in runs:
            if len(run):
                yield path, run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="a folder of snapshots")
    parser.add_argument("--write", action="store_true", help="write benchmarks/sheets/memory.md")
    options = parser.parse_args()
    parts, exact = [], True
    if options.folder:
        table, exact = compare_snapshots(options.folder)
        parts.append("## Predicted / recorded\n\n" + table)
    parts.append("## Replaying\n\n" + speed())
    parts.append("## Searching\n\n" + search())
    text = "\n".join(parts)
    print(text)
    if options.write:
        head = _sheet.header(
            "The caching allocator, replayed",
            "python benchmarks/memory.py FOLDER --write",
            "each snapshot under its own settings, from the state that its trace leads back to; then a "
            f"made-up training run of {LAYERS} layers on 32 to 512 tokens, the best of three tries in "
            "processor time; the search in real time, beside whatever else the machine did",
        )
        _sheet.write("memory", head + text)
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
