"""What the emulated device costs: training loops and single operators, beside the same on the plain CPU."""

from __future__ import annotations

import argparse
import statistics
import time

import _sheet
import torch
from _loops import LOOPS, Step

import gapless
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions

MAX_RATIO = 3.0
"""Bound on a loop's time under `gapless check` relative to the plain CPU, start-up excluded."""


def timed(step: Step, repeats: int) -> list[float]:
    """Return the CPU seconds of each of `repeats` calls, after a warm-up."""
    step()
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        step()
        seconds.append(time.process_time() - began)
    return seconds


def loop_rows(rounds: int, repeats: int) -> list[list[object]]:
    rows: list[list[object]] = []
    for name, make in LOOPS.items():
        plain, counted, checked = [], [], []
        for _ in range(rounds):
            plain += timed(make("cpu"), repeats)
            with gapless.emulate():
                counted += timed(make("cuda"), repeats)
            with Emulator(EmulatorOptions(programme=True)):
                checked += timed(make("cuda"), repeats)
        a, b, c = map(statistics.median, (plain, counted, checked))
        rows.append([name, *(f"{median * 1e3:.1f}" for median in (a, b, c)), f"{b / a:.2f}", f"{c / a:.2f}"])
    return rows


def operator_rows(rounds: int) -> list[list[object]]:
    def per_call(device: str, kind: str) -> float:
        x = torch.ones(3, device=device)
        y = x.clone().requires_grad_() if kind == "add with a gradient" else x
        add = torch.add
        best = []
        for _ in range(rounds):
            began = time.process_time()
            if kind == "view":
                for _ in range(2000):
                    x.view(3, 1)
            else:
                for _ in range(2000):
                    add(x, y)
            best.append((time.process_time() - began) / 2000)
        return min(best) * 1e6

    rows: list[list[object]] = []
    for kind in ("add", "add with a gradient", "view"):
        plain = per_call("cpu", kind)
        with gapless.emulate():
            emulated, host = per_call("cuda", kind), per_call("cpu", kind)
        rows.append([kind, f"{plain:.1f}", f"{emulated:.1f}", f"{host:.1f}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    loops = loop_rows(options.rounds, options.repeats)
    worst = max(float(str(row[-1])) for row in loops)
    text = _sheet.header(
        "Overhead of the emulated device",
        "python benchmarks/overhead.py",
        "CPU time of one thread; each loop on the plain CPU, emulated, and as `gapless check` emulates it, "
        f"in turn in one process, {options.repeats} steps each a round, medians over {options.rounds} "
        "rounds; nothing of the start counts; operators: best of the rounds, 2000 calls each",
    )
    text += "## A step of a training loop\n\n"
    text += _sheet.table(
        [
            "loop",
            "plain CPU, ms",
            "emulated, ms",
            "as checked, with what prices need, ms",
            "emulated / plain",
            "checked / plain",
        ],
        loops,
    )
    text += (
        f"\nThe bound is {MAX_RATIO:g} × the plain CPU for each: "
        f"{'kept' if worst <= MAX_RATIO else 'exceeded'} ({worst:.2f}).\n"
    )
    text += "\n## One small operator (3 elements)\n\n"
    text += _sheet.table(
        ["call", "plain, µs", "emulated device, µs", "host tensors while emulating, µs"],
        operator_rows(options.rounds),
    )
    print(_sheet.write("overhead", text).read_text())


if __name__ == "__main__":
    main()
