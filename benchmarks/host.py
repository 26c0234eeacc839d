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

from gapless.analyze.estimate.programme_steps import recorded_steps
from gapless.analyze.estimate.times import USUAL
from gapless.analyze.estimate.timing import MEASURED_HOST_SPREAD, Times, times_of
from gapless.analyze.run.steps import find_steps
from gapless.capture import host_speed
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.model import Ending
from gapless.model.programme import Entry, GpuRates, Programme

METHOD = (
    "ten training steps of so few elements that kernels cost next to nothing. `predicted` is what an "
    "estimate takes for the host of a usual machine, without the launching calls and the hand-over to "
    "autograd's thread, which the CPU does not have, and with twice the time of an optimizer's lists of "
    "tensors, which the CPU works through one by one; `measured` is the same step on plain CPU tensors, "
    "eager; `probe` is the step that `gapless check` times once on a machine. Thread CPU time, the "
    "quickest tenth of each; step and probe in turn, a tenth of a second each, {rounds} rounds, so that a "
    "busy machine disturbs both alike. Convolutions are left out: on the CPU one takes some 20 µs at any size"
)


def record_step(make: Callable[[str], Step]) -> list[Entry]:
    """Return the entries that a step records on the emulated device."""
    with Emulator(EmulatorOptions(programme=True)) as emulator:
        step = make("cuda")
        for _ in range(6):
            step()
        session = emulator.session(script=("step.py",), ending=Ending())
    assert session.programme is not None
    return list(recorded_steps(session.programme, find_steps(session.marks))[-1])


def predict_host(step: list[Entry], times: Times) -> float:
    """Return a usual host's nanoseconds for the step without launching calls; lists of tensors cost as on
    the CPU, one by one."""
    total = 0.0
    for entry in step:
        if entry.kind == "update":
            total += times.add_times(entry).host
        if entry.kind == "operator":
            entry_times = times.add_times(entry)
            total += entry_times.host - USUAL.call * entry_times.kernels
            total += USUAL.tensor * entry.tensors if entry.tensors > 8 else 0.0
    return total


def in_turn(step: Step, probe: Step, rounds: int) -> tuple[float, float]:
    """Return the quickest tenth of both, nanoseconds."""
    durations: tuple[list[int], list[int]] = ([], [])
    for _ in range(20):
        step()
        probe()
    for _ in range(rounds):
        for function, times in zip((step, probe), durations, strict=True):
            end = time.monotonic() + 0.1
            while time.monotonic() < end:
                began = time.thread_time_ns()
                function()
                times.append(time.thread_time_ns() - began)
    return tuple(float(statistics.quantiles(times, n=10)[0]) for times in durations)  # type: ignore[return-value]


def rows(rounds: int) -> list[tuple[str, int, float, float, float]]:
    """Return for each model: name, operators, predicted, measured and probe nanoseconds."""
    times = times_of(Programme(gpu=GpuRates(bandwidth=1.0, fp32=1.0)))
    measured_rows = []
    for name, make in models().items():
        entries = record_step(make)
        measured, own = in_turn(make("cpu"), host_speed.probe_step(), rounds)
        count = sum(entry.kind == "operator" for entry in entries)
        measured_rows.append((name, count, predict_host(entries, times), measured, own))
    return measured_rows


def _row(model_row: tuple[str, int, float, float, float], off: float) -> list[object]:
    name, count, usual, measured, probe = model_row
    times = (usual, measured, probe, usual * probe / host_speed.USUAL)
    return [name, count, *(f"{time / 1e3:.0f}" for time in times), f"{math.exp(off):.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    measured_rows = rows(options.rounds)
    ratios = [math.log(measured / usual) for _, _, usual, measured, _ in measured_rows]
    speed = math.exp(statistics.fmean(ratios))
    scaled = [
        math.log(measured / (usual * probe / host_speed.USUAL))
        for _, _, usual, measured, probe in measured_rows
    ]
    probe = statistics.median(model_row[-1] for model_row in measured_rows)
    text = _sheet.header("The host", "python benchmarks/host.py", METHOD.format(rounds=options.rounds))
    columns = ["model", "operators", "predicted, µs", "measured, µs", "probe, µs", "by the probe, µs", "off"]
    text += _sheet.table(
        columns, [_row(model_row, off) for model_row, off in zip(measured_rows, scaled, strict=True)]
    )
    off = [abs(error) for error in scaled]
    text += (
        f"\nThis machine takes {speed:.2f} times what a usual host does for these models (geometric mean), "
        f"and {probe / host_speed.USUAL:.2f} times by the probe: one of {probe / speed / 1e3:.0f} µs is a "
        f"usual host's, and `host_speed.USUAL` is {host_speed.USUAL / 1e3:.0f}. Predictions scaled by the "
        f"probe are off by a factor of {math.exp(statistics.median(off)):.2f} in the median and "
        f"{math.exp(max(off)):.2f} at worst; the logarithm's standard deviation is "
        f"{statistics.pstdev(scaled, 0.0):.2f}, and an interval takes {MEASURED_HOST_SPREAD:g}.\n"
    )
    print(text)
    _sheet.write("host", text)


if __name__ == "__main__":
    main()
