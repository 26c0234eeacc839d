"""What the host needs for a training step: as predicted, beside the same steps on plain CPU tensors."""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable

import _sheet
import torch
from _host_models import Step, models

from gapless.analyze.estimate.programme_steps import recorded
from gapless.analyze.estimate.times import USUAL
from gapless.analyze.estimate.timing import MEASURED, Times, times_of
from gapless.analyze.run.steps import find_steps
from gapless.capture import host_speed
from gapless.emulation.emulator import Emulator
from gapless.model import Ending
from gapless.model.programme import Entry, Gpu, Programme

METHOD = (
    "ten training steps of so few elements that kernels cost next to nothing. `predicted` is what an "
    "estimate takes for the host of a usual machine, without the launching calls and the hand-over to "
    "autograd's thread, which the CPU does not have, and with twice the time of an optimizer's lists of "
    "tensors, which the CPU works through one by one; `measured` is the same step on plain CPU tensors, "
    "eager; `probe` is the step that `gapless check` times once on a machine. Thread CPU time, the "
    "quickest tenth of each; step and probe in turn, a tenth of a second each, {rounds} rounds, so that a "
    "busy machine disturbs both alike. Convolutions are left out: on the CPU one takes some 20 µs at any size"
)


def programme(make: Callable[[str], Step]) -> list[Entry]:
    """What a step asks of the emulated device."""
    with Emulator(programme=True) as emulator:
        step = make("cuda")
        for _ in range(6):
            step()
        session = emulator.session(script=("step.py",), ending=Ending())
    assert session.programme is not None
    return list(recorded(session.programme, find_steps(session.marks))[-1])


def predicted(step: list[Entry], times: Times) -> float:
    """Nanoseconds of a usual host for it, but for the launching calls; lists of tensors as the CPU takes
    them, one by one."""
    total = 0.0
    for entry in step:
        if entry.kind == "update":
            total += times.timed(entry).host
        if entry.kind == "operator":
            one = times.timed(entry)
            total += one.host - USUAL.call * one.kernels
            total += USUAL.tensor * entry.tensors if entry.tensors > 8 else 0.0
    return total


def in_turn(step: Step, probe: Step, rounds: int) -> tuple[float, float]:
    """Nanoseconds of both, the quickest tenth."""
    found: tuple[list[int], list[int]] = ([], [])
    for _ in range(20):
        step()
        probe()
    for _ in range(rounds):
        for one, times in zip((step, probe), found, strict=True):
            end = time.monotonic() + 0.1
            while time.monotonic() < end:
                began = time.thread_time_ns()
                one()
                times.append(time.thread_time_ns() - began)
    return tuple(float(statistics.quantiles(times, n=10)[0]) for times in found)  # type: ignore[return-value]


def rows(rounds: int) -> list[tuple[str, int, float, float, float]]:
    """Model, operators, predicted, measured and the probe beside it."""
    times = times_of(Programme(gpu=Gpu(bandwidth=1.0, fp32=1.0)))
    found = []
    for name, make in models().items():
        asked = programme(make)
        measured, own = in_turn(make("cpu"), host_speed.probe_step(), rounds)
        count = sum(entry.kind == "operator" for entry in asked)
        found.append((name, count, predicted(asked, times), measured, own))
    return found


def _row(one: tuple[str, int, float, float, float], off: float) -> list[object]:
    name, count, usual, measured, probe = one
    times = (usual, measured, probe, usual * probe / host_speed.USUAL)
    return [name, count, *(f"{time / 1e3:.0f}" for time in times), f"{math.exp(off):.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found = rows(asked.rounds)
    ratios = [math.log(measured / usual) for _, _, usual, measured, _ in found]
    speed = math.exp(statistics.fmean(ratios))
    scaled = [
        math.log(measured / (usual * probe / host_speed.USUAL)) for _, _, usual, measured, probe in found
    ]
    probe = statistics.median(one[-1] for one in found)
    text = _sheet.header("The host", "python benchmarks/host.py", METHOD.format(rounds=asked.rounds))
    columns = ["model", "operators", "predicted, µs", "measured, µs", "probe, µs", "by the probe, µs", "off"]
    text += _sheet.table(columns, [_row(one, off) for one, off in zip(found, scaled, strict=True)])
    off = [abs(one) for one in scaled]
    text += (
        f"\nThis machine takes {speed:.2f} times what a usual host does for these models (geometric mean), "
        f"and {probe / host_speed.USUAL:.2f} times by the probe: one of {probe / speed / 1e3:.0f} µs is a "
        f"usual host's, and `host_speed.USUAL` is {host_speed.USUAL / 1e3:.0f}. Predictions scaled by the "
        f"probe are off by a factor of {math.exp(statistics.median(off)):.2f} in the median and "
        f"{math.exp(max(off)):.2f} at worst; the logarithm's standard deviation is "
        f"{statistics.pstdev(scaled, 0.0):.2f}, and an interval takes {MEASURED:g}.\n"
    )
    print(text)
    _sheet.write("host", text)


if __name__ == "__main__":
    main()
