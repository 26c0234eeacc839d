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
from gapless.analyze.profile.building import profile
from gapless.analyze.profile.join import join
from gapless.analyze.profile.profile_findings import findings
from gapless.analyze.reports import report
from gapless.analyze.run.boundary import StepEnds
from gapless.analyze.run.steps import find_steps
from gapless.capture import profiling
from gapless.emulation.emulator import Emulator
from gapless.model import Profile, Session, Site, gpus
from gapless.model.proof import Interval
from gapless.prove.timing import median_interval
from gapless.trace.read import read
from gapless.trace.timeline import Timeline

Step = Callable[[], None]
Steps = Callable[[str], dict[str, Step]]
"""Gives the training step of each stage on a device, by name."""

_WORDS = "synchronizing CUDA operation"
_EMULATED = 8
_WINDOW = profiling.Schedule(wait=1, warmup=2, active=6)


@dataclass
class Measured:
    """One stage. Times in seconds a step; `predicted` is what the next stage's fix saves, -1: no wait goes.

    `emulated` and `debug` are waits, `estimated` the step on the emulated GPU, `light` and `heavy` the step
    in a profile without Python stacks and with. `ratio` is to the first stage, block by block.
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


def gpu() -> bool:
    """Whether there is a device to measure on."""
    return torch.cuda.is_available()


def measure(steps: Steps, rounds: int, block: int, emulated: Steps | None = None) -> list[Measured]:
    """Everything of every stage. `emulated`: the same at sizes that the emulated device can carry."""
    device = "cuda" if gpu() else "cpu"
    rows = [Measured(name) for name in steps(device)]
    for row in rows:
        look(emulated or steps, row)
    made = steps(device)
    if gpu():
        for row in rows:
            row.debug = debug_waits(made[row.name])
    samples = in_turn(list(made.values()), rounds, block)
    for row, taken in zip(rows, samples, strict=True):
        row.step = median_interval(taken)
        row.ratio = median_interval([own / first for own, first in zip(taken, samples[0], strict=True)])
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            window(made[row.name], row, Path(folder))
    for row, following in pairwise(rows):
        row.predicted = on_gpu(row, following) if gpu() else emulation(row, following)
    return rows


# Waits --------------------------------------------------------------------------------------------


def look(steps: Steps, row: Measured) -> None:
    """Run the stage on the emulated device."""
    with Emulator(programme=True) as emulator:
        step = steps("cuda")[row.name]
        for _ in range(_EMULATED):
            step()
    row.session = emulator.session()
    found = report(row.session)
    row.emulated = found.steps.waits_per_step
    if found.estimate is not None:
        row.estimated = found.estimate.step.likely / 1e9


def debug_waits(step: Step, times: int = 5) -> float:
    """Waits of a step as torch's synchronization debug mode counts them; explicit ones it does not see."""
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
    return sum(_WORDS in str(one.message) for one in heard) / times


# Time ---------------------------------------------------------------------------------------------


def in_turn(steps: Sequence[Step], rounds: int, block: int) -> list[list[float]]:
    """Seconds per step of each, in blocks A B C A B C …; a device is done when the clock is read."""
    wait = torch.cuda.synchronize if gpu() else lambda: None
    # Without a GPU the processor's own time: that of a busy machine says nothing.
    clock = time.perf_counter if gpu() else time.process_time
    for step in steps:
        for _ in range(max(3, block // 2)):
            step()
    found: list[list[float]] = [[] for _ in steps]
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for step, own in zip(steps, found, strict=True):
                wait()
                begun = clock()
                for _ in range(block):
                    step()
                wait()
                own.append((clock() - begun) / block)
    finally:
        gc.enable()
    return found


# Profiles -----------------------------------------------------------------------------------------


def window(step: Step, row: Measured, folder: Path) -> None:
    """A window of the profiler, recorded as `gapless profile` does: without stacks, then with."""
    machine = (
        profiling.machine() if gpu() else profiling.Machine("CPU", (torch.profiler.ProfilerActivity.CPU,))
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
    if gpu():
        row.light, row.heavy = _length(light), _length(heavy)
        row.timeline = join(light, heavy).timeline
        row.profile = profile(row.timeline)
        return
    # The last step of a pass ends with the writing of its file.
    begin = _WINDOW.wait + _WINDOW.warmup
    row.light = median(taken[begin : begin + _WINDOW.active - 1])
    begin += _WINDOW.active + _WINDOW.warmup
    row.heavy = median(taken[begin : begin + _WINDOW.active - 1])


def _length(timeline: Timeline) -> float:
    """Seconds from one step's beginning to the next one's, in the mean."""
    host = timeline.host
    rows = [n for n in range(len(host)) if timeline.names[host.name[n]].startswith("ProfilerStep#")]
    starts = sorted(int(host.start[row]) for row in rows)
    return (starts[-1] - starts[0]) / (len(starts) - 1) / 1e9


# Prices -------------------------------------------------------------------------------------------


def on_gpu(row: Measured, following: Measured) -> float:
    """What the replay of the profile says that leaving out the waits saves which the next stage lacks."""
    assert row.timeline is not None
    assert row.profile is not None
    assert following.profile is not None
    kept = {one.code for one in findings([following.profile])}
    gone = sorted({one.code for one in findings([row.profile]) if one.code.startswith("GAP1")} - kept)
    if not gone:
        return -1.0
    prices = profile(row.timeline, asked=gone).prices
    if prices is None or prices.asked is None or prices.refused:
        return -1.0
    return prices.asked.saved / max(len(row.profile.steps.start), 1) / 1e9


def emulation(row: Measured, following: Measured) -> float:
    """The same as `gapless check` estimates it, for the GPU that is emulated."""
    assert row.session is not None
    assert following.session is not None
    session = row.session
    kept = {_what(site) for site in following.session.sites}
    gone = [number for number, site in enumerate(session.sites) if _what(site) not in kept]
    found = estimate(session, find_steps(session.marks), {0: gone}) if gone else None
    if found is None or not found.prices.each:
        return -1.0
    return found.prices.each[0].alone / 1e9


def _what(site: Site) -> tuple[str, ...]:
    """A site by the text of its line: stages are written in different files."""
    first: Any = site.stack[0] if site.stack else None
    return (site.operator, site.node, *((first.function, first.code) if first else ()))


def measured(experiment: ModuleType, size: object, rounds: int, block: int) -> list[Measured]:
    """The stages of `experiment` at `size`; on a GPU the emulated device runs them small."""
    small = experiment.SMALL if gpu() else size
    return measure(experiment.steps(size), rounds, block, emulated=experiment.steps(small))


def main(doc: str | None, experiment: ModuleType, name: str, block: int) -> int:
    """The command line of an experiment: small on a CPU, at full size on a GPU."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--block", type=int, default=block)
    parser.add_argument("--write", action="store_true", help="keep the sheet")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    size = experiment.FULL if gpu() else experiment.SMALL
    rows = measured(experiment, size, options.rounds, options.block)
    command = f"python benchmarks/{name}.py --write"
    text = experiment.sheet(rows, size, options.rounds, options.block, command)
    print(text)
    if options.write:
        _sheet.write(name, text)
    return 0


# The sheet ----------------------------------------------------------------------------------------


def table(rows: Sequence[Measured]) -> str:
    """What was measured, as Markdown."""
    on = "GPU" if gpu() else "CPU"
    columns = ["stage", "waits a step, emulated"]
    columns += ["by torch's debug mode", "GPU idle"] if gpu() else ["ms a step, estimated"]
    columns += [f"ms a step ({on})", "between", "× first, in turn", "ms in a profile", "with stacks"]
    columns += ["next fix saves, predicted", "measured" if gpu() else f"measured ({on})"]
    lines: list[list[object]] = []
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        cells: list[object] = [row.name, f"{row.emulated:g}"]
        if gpu() and row.profile is not None:
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
    """How it was measured, in words."""
    where = (
        "time on the GPU, the device synchronized at both ends of a block; predicted: replay of the profile "
        "without the waits whose rules the next stage lacks"
        if gpu()
        else "processor time, one thread, on the CPU, where waits cost nothing; estimated and predicted: "
        f"what `gapless check` says of an emulated {gpus.DEFAULT.name} at this size"
    )
    return (
        f"{sizes}; inputs made beforehand, on the device; {rounds * block} steps of each stage without a "
        f"profiler, in blocks of {block}, stages in turn, medians of the blocks and what holds the median "
        f"with 95 %; {where}; waits of {_EMULATED} steps on the emulated device; profiles of "
        f"{_WINDOW.active} steps, without and with Python stacks"
    )
