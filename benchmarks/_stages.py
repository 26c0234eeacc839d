"""The stages of an experiment side by side: waits, time of a step, what a profile says, what a fix saves."""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import _sheet
import torch

from gapless.analyze.estimate.estimate import estimate
from gapless.analyze.profile.building import build_profile
from gapless.analyze.profile.join import join_profiles
from gapless.analyze.profile.profile_findings import find_in_profiles
from gapless.analyze.reports import report
from gapless.analyze.run.boundary import StepEnds
from gapless.analyze.run.steps import find_steps
from gapless.capture import profiling
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.model import Profile, Session, Site, gpus
from gapless.model.proof import Interval
from gapless.prove.timing import median_interval
from gapless.trace.read import read
from gapless.trace.timeline import Timeline

Step = Callable[[], None]
Steps = Callable[[str], dict[str, Step]]
"""Returns the training step of each stage on a device, by name."""

_WORDS = "synchronizing CUDA operation"
_EMULATED = 8
_WINDOW = profiling.Schedule(wait=1, warmup=2, active=6)


@dataclass
class Measured:
    """One stage. Times in seconds per step; `predicted` is what the next stage's fix saves (-1: it removes
    no wait).

    `emulated` and `debug` are waits, `estimated` the step on the emulated GPU, `light` and `heavy` the step
    in a profile without and with Python stacks. `ratio` is to the first stage, block by block.
    """

    name: str
    emulated: float = 0.0
    estimated: float = 0.0
    debug: float = -1.0
    step: Interval = field(default_factory=lambda: Interval(median=0.0, low=0.0, high=0.0))
    ratio: Interval = field(default_factory=lambda: Interval(median=0.0, low=0.0, high=0.0))
    light: float = 0.0
    heavy: float = 0.0
    session: Session | None = None
    timeline: Timeline | None = None
    profile: Profile | None = None
    predicted: float = -1.0


def has_gpu() -> bool:
    """Whether there is a GPU to measure on."""
    return torch.cuda.is_available()


def measure(steps: Steps, rounds: int, block: int, emulated: Steps | None = None) -> list[Measured]:
    """Measure every stage; `emulated` are the stages at sizes the emulated device can run: None leaves it
    out, and without a GPU the predictions."""
    device = "cuda" if has_gpu() else "cpu"
    rows = [Measured(name) for name in steps(device)]
    for row in rows if emulated is not None else []:
        run_emulated(emulated, row)
    step_of = steps(device)
    if has_gpu():
        for row in rows:
            row.debug = debug_waits(step_of[row.name])
    samples = in_turn(list(step_of.values()), rounds, block)
    for row, taken in zip(rows, samples, strict=True):
        row.step = median_interval(taken)
        row.ratio = median_interval([own / first for own, first in zip(taken, samples[0], strict=True)])
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            record_profile(step_of[row.name], row, Path(folder))
    for row, following in pairwise(rows):
        if has_gpu():
            row.predicted = saving_on_gpu(row, following)
        elif emulated is not None:
            row.predicted = saving_emulated(row, following)
    return rows


# Waits --------------------------------------------------------------------------------------------


def run_emulated(steps: Steps, row: Measured) -> None:
    """Run the stage on the emulated device and note its waits and estimate in `row`."""
    with Emulator(EmulatorOptions(programme=True)) as emulator:
        step = steps("cuda")[row.name]
        for _ in range(_EMULATED):
            step()
    row.session = emulator.session()
    stage_report = report(row.session)
    row.emulated = stage_report.steps.waits_per_step
    if stage_report.estimate is not None:
        row.estimated = stage_report.estimate.step.likely / 1e9


def debug_waits(step: Step, times: int = 5) -> float:
    """Return the waits of a step that torch's synchronization debug mode counts; it misses explicit ones."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for _ in range(times):
                step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum(_WORDS in str(warning.message) for warning in heard) / times


# Time ---------------------------------------------------------------------------------------------


def in_turn(steps: Sequence[Step], rounds: int, block: int) -> list[list[float]]:
    """Return the seconds per step of each, in alternating blocks A B C A B C …; the device is
    synchronized around each."""
    wait = torch.cuda.synchronize if has_gpu() else lambda: None
    # Without a GPU take processor time: wall time on a busy machine says nothing.
    clock = time.perf_counter if has_gpu() else time.process_time
    for step in steps:
        for _ in range(max(3, block // 2)):
            step()
    samples: list[list[float]] = [[] for _ in steps]
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for step, own in zip(steps, samples, strict=True):
                wait()
                begun = clock()
                for _ in range(block):
                    step()
                wait()
                own.append((clock() - begun) / block)
    finally:
        gc.enable()
    return samples


# Profiles -----------------------------------------------------------------------------------------


def record_profile(step: Step, row: Measured, folder: Path) -> None:
    """Record profiles as `gapless profile` does, without stacks and with; note their step times in `row`."""
    machine = (
        profiling.machine()
        if has_gpu()
        else profiling.ProfiledDevice("CPU", (torch.profiler.ProfilerActivity.CPU,))
    )
    recipe = profiling.Recipe(folder, "".join(filter(str.isalnum, row.name)), _WINDOW)
    capture = profiling.Profiling(recipe, machine, StepEnds()).start()
    taken = []
    for _ in range(_WINDOW.steps() + 1):
        begun = time.process_time()
        step()
        taken.append(time.process_time() - begun)
    capture.stop()
    light, heavy = (read(path) for path in capture.saved)
    if has_gpu():
        row.light, row.heavy = _mean_step(light), _mean_step(heavy)
        row.timeline = join_profiles(light, heavy).timeline
        row.profile = build_profile(row.timeline)
        return
    # The last step of a pass includes writing its file.
    begin = _WINDOW.wait + _WINDOW.warmup
    row.light = median(taken[begin : begin + _WINDOW.active - 1])
    begin += _WINDOW.active + _WINDOW.warmup
    row.heavy = median(taken[begin : begin + _WINDOW.active - 1])


def _mean_step(timeline: Timeline) -> float:
    """Return the mean seconds between the beginnings of steps."""
    host = timeline.host
    rows = [n for n in range(len(host)) if timeline.names[host.name[n]].startswith("ProfilerStep#")]
    starts = sorted(int(host.start[row]) for row in rows)
    return (starts[-1] - starts[0]) / (len(starts) - 1) / 1e9


# Prices -------------------------------------------------------------------------------------------


def saving_on_gpu(row: Measured, following: Measured) -> float:
    """Return the seconds per step that a replay of the profile saves without the waits the next stage
    lacks."""
    assert row.timeline is not None
    assert row.profile is not None
    assert following.profile is not None
    kept = {finding.code for finding in find_in_profiles([following.profile])}
    gone = sorted(
        {finding.code for finding in find_in_profiles([row.profile]) if finding.code.startswith("GAP1")}
        - kept
    )
    if not gone:
        return -1.0
    prices = build_profile(row.timeline, requested=gone).prices
    if prices is None or prices.asked is None or prices.refused:
        return -1.0
    return prices.asked.saved / max(len(row.profile.steps.start), 1) / 1e9


def saving_emulated(row: Measured, following: Measured) -> float:
    """Return the saving that `gapless check` estimates for the emulated GPU."""
    assert row.session is not None
    assert following.session is not None
    session = row.session
    kept = {_site_key(site) for site in following.session.sites}
    gone = [number for number, site in enumerate(session.sites) if _site_key(site) not in kept]
    estimated = estimate(session, find_steps(session.marks), {0: gone}) if gone else None
    if estimated is None or not estimated.prices.each:
        return -1.0
    return estimated.prices.each[0].alone / 1e9


def _site_key(site: Site) -> tuple[str, ...]:
    """Return a key of a site by the text of its line, since stages are in different files."""
    first: Any = site.stack[0] if site.stack else None
    return (site.operator, site.node, *((first.function, first.code) if first else ()))


def measure_experiment(experiment: ModuleType, size: object, rounds: int, block: int) -> list[Measured]:
    """Measure the stages of `experiment` at `size`; on a GPU the emulated device runs them small."""
    small = experiment.SMALL if has_gpu() else size
    return measure(experiment.steps(size), rounds, block, emulated=experiment.steps(small))


def main(doc: str | None, experiment: ModuleType, name: str, block: int) -> int:
    """Run the command line of an experiment: small on a CPU, full size on a GPU."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--block", type=int, default=block)
    parser.add_argument("--write", action="store_true", help="keep the sheet")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    size = experiment.FULL if has_gpu() else experiment.SMALL
    rows = measure_experiment(experiment, size, options.rounds, options.block)
    command = f"python benchmarks/{name}.py --write"
    text = experiment.sheet(rows, size, options.rounds, options.block, command)
    print(text)
    if options.write:
        _sheet.write(name, text)
    return 0


# The sheet ----------------------------------------------------------------------------------------


def table(rows: Sequence[Measured]) -> str:
    """Return what was measured as a Markdown table."""
    on = "GPU" if has_gpu() else "CPU"
    columns = ["stage", "waits a step, emulated"]
    columns += ["by torch's debug mode", "GPU idle"] if has_gpu() else ["ms a step, estimated"]
    columns += [f"ms a step ({on})", "between", "× first, in turn", "ms in a profile", "with stacks"]
    columns += ["next fix saves, predicted", "measured" if has_gpu() else f"measured ({on})"]
    lines: list[list[object]] = []
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        cells: list[object] = [row.name, f"{row.emulated:g}"]
        if has_gpu() and row.profile is not None:
            cells += [f"{row.debug:g}", f"{100 * row.profile.idle / max(row.profile.steps.total, 1):.1f} %"]
        else:
            cells.append(_ms(row.estimated))
        cells += [_ms(row.step.median), f"{_ms(row.step.low)} to {_ms(row.step.high)}"]
        cells.append(f"{row.ratio.median:.3f} ({row.ratio.low:.3f} to {row.ratio.high:.3f})")
        cells += [_ms(row.light), _ms(row.heavy)]
        saved = row.step.median - following.step.median if following else 0.0
        cells += [_ms(row.predicted) if row.predicted >= 0 else "–", _ms(saved) if following else "–"]
        lines.append(cells)
    return _sheet.table(columns, lines)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f}"


def method(rounds: int, block: int, sizes: str) -> str:
    """Return how it was measured, in words."""
    where = (
        "time on the GPU, the device synchronized at both ends of a block; predicted: replay of the profile "
        "without the waits whose rules the next stage lacks"
        if has_gpu()
        else "processor time, one thread, on the CPU, where waits cost nothing; estimated and predicted: "
        f"what `gapless check` says of an emulated {gpus.DEFAULT.name} at this size"
    )
    return (
        f"{sizes}; inputs made beforehand, on the device; {rounds * block} steps of each stage without a "
        f"profiler, in blocks of {block}, stages in turn, medians of the blocks and what holds the median "
        f"with 95 %; {where}; waits of {_EMULATED} steps on the emulated device; profiles of "
        f"{_WINDOW.active} steps, without and with Python stacks"
    )
