"""What following values on the CPU costs a check, and how many findings are joined by their cause."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import _sheet
import msgspec
import torch
from _loops import LOOPS, Step

import gapless
from gapless.analyze.session_report import report
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.errors import UnreadableInput
from gapless.model.session import Session, load

MAX_COST = 0.05
"""Bound on the CPU time that origins add to a step."""
SCRIPTS = _sheet.HERE.parent / "tests" / "field" / "scripts"
IN_STEPS = ("every-step", "some-steps")


def copies() -> Step:
    """Return a step of small operators on the CPU whose results go to the GPU, and come back as an index."""
    net = torch.nn.Linear(32, 32).cuda()
    table = torch.rand(64, 32)

    def step() -> None:
        for number in range(20):
            rows = (table[number : number + 8] * 2 + torch.rand(8, 32)).cuda()
            out = net(rows)
            rows[out[:, 0].argsort().cpu()]
        gapless.step()

    return step


def cpu_seconds(make: Callable[[], Step], repeats: int, recording: bool) -> float:
    """Return the CPU seconds of `repeats` calls of a step, with origins or without, under the emulation."""
    with Emulator(EmulatorOptions(programme=True)) as emulator:
        emulator.core.origins.enabled &= recording
        step = make()
        step()
        began = time.process_time()
        for _ in range(repeats):
            step()
        return time.process_time() - began


def cost_rows(rounds: int, repeats: int) -> list[list[object]]:
    """Return for each loop the step's CPU time without origins and the ratio with them, in turn."""
    rows: list[list[object]] = []
    loops = {name: lambda make=make: make("cuda") for name, make in LOOPS.items()} | {"copies": copies}
    for name, make in loops.items():
        plain, ratios = [], []
        for number in range(rounds):
            seconds = {}
            for recording in (False, True) if number % 2 else (True, False):
                seconds[recording] = cpu_seconds(make, repeats, recording)
            plain.append(seconds[False] / repeats)
            ratios.append(seconds[True] / seconds[False] - 1)
        low, high = min(ratios), max(ratios)
        rows.append(
            [
                name,
                f"{statistics.median(plain) * 1e3:.1f}",
                f"{statistics.median(ratios):+.1%}",
                f"{low:+.1%} to {high:+.1%}",
            ]
        )
    return rows


def without_causes(session: Session) -> Session:
    sites = tuple(msgspec.structs.replace(site, cause=None) for site in session.sites)
    return msgspec.structs.replace(session, sites=sites)


def count_findings(session: Session) -> int:
    """Return how many findings on training steps the report has."""
    return sum(finding.frequency.when in IN_STEPS for finding in report(session, priced=False).findings)


def grouping_rows(scripts: Sequence[Path]) -> list[list[object]]:
    """Return for each script its findings without and with causes, and how many sites have one."""
    rows: list[list[object]] = []
    for script in scripts:
        with tempfile.TemporaryDirectory() as folder:
            saved = Path(folder) / "session.gz"
            words = ["check", "--no-loader", "--no-prices", "-q", "-o", str(saved), str(script.resolve())]
            try:
                subprocess.run(
                    [sys.executable, "-m", "gapless", *words], capture_output=True, timeout=60, cwd=folder
                )
                session = load(saved)
            except (subprocess.TimeoutExpired, UnreadableInput):
                continue
        before, after = count_findings(without_causes(session)), count_findings(session)
        if before:
            causes = sum(site.cause is not None for site in session.sites)
            rows.append([script.stem, before, after, f"{causes} of {len(session.sites)}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("scripts", type=Path, nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(1)
    costs = cost_rows(options.rounds, options.repeats)
    findings = grouping_rows(options.scripts or sorted(SCRIPTS.glob("*.py")))
    worst = max(float(str(row[2]).rstrip("%")) / 100 for row in costs)
    text = _sheet.header(
        "Where values come from: cost and findings",
        "python benchmarks/origins.py",
        "CPU time of one thread, emulated as `gapless check` does, with origins and without in turn in one "
        f"process, {options.repeats} steps each, median ratio of {options.rounds} pairs; findings "
        "on steps of scripts in tests/field/scripts, from one session each with and without its causes",
    )
    text += _sheet.table(["loop", "step without, ms", "with origins", "range"], costs)
    text += f"\nThe bound is {MAX_COST:.0%}: {'kept' if worst <= MAX_COST else 'exceeded'} ({worst:.1%}).\n\n"
    text += _sheet.table(["script", "findings before", "after", "sites with a cause"], findings)
    before, after = (sum(int(str(row[at])) for row in findings) for at in (1, 2))
    text += f"\nTogether {before} → {after} findings.\n"
    print(_sheet.write("origins", text).read_text())


if __name__ == "__main__":
    main()
