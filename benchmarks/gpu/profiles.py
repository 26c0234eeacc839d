"""Profiles of the examples on a real GPU, and their waits' cost: predicted from one, measured in the next.

    python benchmarks/gpu/profiles.py                 # on a machine with a GPU: profiles.md, and the profiles
    python benchmarks/gpu/profiles.py --self-check    # anywhere: the emulated device in the GPU's place

Each stage of an example runs unmodified, twice: once under the profiler, with Python stacks, shapes and the
driver's own synchronization events, for a few steps after a warm-up; and once without it, for the time of a
step (from one optimizer step to the next, the device synchronized at both ends of the stretch only). From the
profile of a stage comes the predicted gain of leaving out the waits whose rules the next stage no longer has;
from the times the measured one. The profiles stay in ``kept``, with what `gapless trace --evidence` says of
them. The self-check has no device work to profile: it proves that the stages run, that steps are recorded and
that the files are read.
"""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import _experiment
import _seen
import _sheet
import _steps
import torch
from _experiment import KEPT, ROOT, Results

FULL = ["--size", "224", "--batch", "128", "--classes", "1000", "--average", "macro", "--workers", "12"]
"""The sizes of the metric experiment; the emulated device keeps to the examples' own small ones."""
CHAINS: dict[str, tuple[str, ...]] = {
    "metrics": ("naive", "step1_weight", "step2_nan_check", "step4_tensor_update"),
    "segmentation": ("original", "step1_where", "step2_sort", "step3_ignore_index"),
}
STAGES = [f"{chain}/{stage}" for chain, stages in CHAINS.items() for stage in stages]
WARM_UP, ACTIVE, TIMED = 8, 4, 20
"""Optimizer steps that warm up, are profiled, are timed."""


def words(stage: str, emulated: bool) -> list[str]:
    """Return the script's arguments: enough steps, and the article's sizes on a GPU."""
    steps = ["--steps", str(WARM_UP + TIMED + 1)]
    return steps + (FULL if stage.startswith("metrics/") and not emulated else [])


def profile_path(folder: Path, stage: str) -> Path:
    return folder / f"{stage.replace('/', '-')}.json.gz"


def record_profile(stage: str, emulated: bool) -> int:
    """Keep the profile of a few steps as the profiler writes it; return the number of steps in it."""
    from gapless.trace.read import read

    with _experiment.kept("profiles", emulated) as folder:
        target = profile_path(folder, stage)
        plain = target.with_suffix("")
        profiler = _seen.profiler(
            not emulated,
            record_shapes=True,
            schedule=torch.profiler.schedule(wait=WARM_UP - 2, warmup=2, active=ACTIVE, repeat=1),
            on_trace_ready=lambda finished: finished.export_chrome_trace(str(plain)),
        )

        def step(number: int) -> None:
            profiler.step()
            if number >= WARM_UP + ACTIVE + 1:
                raise _steps.StopScript

        with profiler:
            _steps.run(ROOT / "examples" / f"{stage}.py", words(stage, emulated), step)
        with plain.open("rb") as source, gzip.open(target, "wb") as file:
            shutil.copyfileobj(source, file)
        plain.unlink()
        timeline = read(target)
    steps = sum(name.startswith("ProfilerStep#") for name in timeline.names)
    if steps < ACTIVE:
        raise RuntimeError(f"the profile of {stage} holds {steps} steps, not {ACTIVE}")
    return steps


def evidence(emulated: bool) -> int:
    """Write the rows of `gapless trace --evidence` for all profiles; return their number."""
    profiles = sorted((KEPT / "profiles").glob("*.json.gz"))
    if emulated or not profiles:
        return 0
    with _experiment.kept("evidence", emulated) as folder:
        target = folder / "examples.tsv"
        command = [sys.executable, "-m", "gapless", "trace", "--evidence", "-o", str(target)]
        subprocess.run([*command, *map(str, profiles)], check=True, env=_experiment.environment_without_gpu())
        return sum(not line.startswith("#") for line in target.read_text().splitlines())


def measure_chain(chain: str, emulated: bool) -> Results:
    """Return the steps in the profile and the seconds of a step of each stage of a chain, one after the
    other in this process."""
    stages: Results = {}
    for stage in STAGES:
        if stage.startswith(f"{chain}/"):
            script = ROOT / "examples" / f"{stage}.py"
            seconds = _steps.seconds(script, words(stage, emulated), WARM_UP, TIMED)
            stages[stage] = {"steps": record_profile(stage, emulated), "seconds": seconds}
    return stages


def part(name: str, emulated: bool) -> Any:
    if name == "evidence":
        return evidence(emulated)
    with _experiment.device(emulated):
        return measure_chain(name, emulated)


def compare(before: str, after: str, seconds: tuple[float, float]) -> list[object]:
    """Return a row of the sheet: the predicted and measured saving of removing the waits that went."""
    from gapless.analyze.profile.building import build_profile
    from gapless.analyze.profile.profile_findings import find_in_profiles
    from gapless.trace.read import read

    timeline = read(profile_path(KEPT / "profiles", before))
    first, second = build_profile(timeline), build_profile(read(profile_path(KEPT / "profiles", after)))
    kept = {finding.code for finding in find_in_profiles([second])}
    gone = sorted(
        {finding.code for finding in find_in_profiles([first]) if finding.code[:4] == "GAP1"} - kept
    )
    predicted = 0.0
    if gone:
        prices = build_profile(timeline, requested=gone).prices
        if prices is not None and prices.asked is not None:
            predicted = prices.asked.saved / max(prices.span, 1)
    measured = 1 - seconds[1] / seconds[0]
    return [
        f"{before} → {after.partition('/')[2]}",
        ", ".join(gone) or "none",
        f"{1e3 * seconds[0]:.2f}",
        f"{1e3 * seconds[1]:.2f}",
        f"{100 * predicted:.1f} %",
        f"{100 * measured:.1f} %",
        f"{100 * (predicted - measured):+.1f}",
    ]


def sheet(results: Results) -> tuple[str, list[str]]:
    rows: list[list[object]] = []
    for chain in CHAINS:
        for before, after in pairwise(results.get(chain, {}).items()):
            if _experiment.SELF_CHECK:
                steps = [stage["steps"] for _, stage in (before, after)]
                rows.append([f"{before[0]} → {after[0]}", f"{steps} steps recorded", *["–"] * 5])
            else:
                rows.append(compare(before[0], after[0], (before[1]["seconds"], after[1]["seconds"])))
    columns = ["stages", "waits that went", "ms before", "ms after", "predicted", "measured", "points apart"]
    text = _sheet.table(columns, rows)
    if results.get("evidence"):
        text += f"\n`gapless trace --evidence` gives {results['evidence']} rows.\n"
    return text, []


def script() -> _experiment.Script:
    return _experiment.Script(
        __doc__, __file__, "Predicted and measured gains",
        f"profiles of {ACTIVE} steps after {WARM_UP}, with stacks, shapes and synchronization events; times "
        f"of {TIMED} steps without the profiler; predicted: the replay without the waits that the next lacks",
        part, sheet, alone=[*CHAINS, "evidence"], seconds=120,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(script().main())
