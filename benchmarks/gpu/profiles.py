"""Profiles of the examples on a real GPU, and their waits' cost: predicted from one, measured in the next.

    python benchmarks/gpu/profiles.py --out traces    # on a machine with a GPU: profiles, and profiles.md
    python benchmarks/gpu/profiles.py --self-check    # anywhere: the emulated device in the GPU's place

Each stage of an example runs unmodified, twice: once under the profiler, with Python stacks and the driver's
own synchronization events, for a few steps after a warm-up; and once without it, for the time of a step (from
one optimizer step to the next, the device synchronized at both ends of the stretch only). From the profile of
a stage comes the predicted gain of leaving out the waits whose rules the next stage no longer has; from the
times the measured one. The self-check has no device work to profile: it proves that the stages run, that
steps are recorded and that the files are read.
"""

from __future__ import annotations

import argparse
import gzip
import json
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
import _sheet
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

FULL = ["--size", "224", "--batch", "128", "--classes", "1000", "--average", "macro"]
"""The sizes of the metric experiment; the emulated device keeps to the examples' own small ones."""

CHAINS: dict[str, list[tuple[str, list[str]]]] = {
    "metrics": [
        (f"examples/metrics/{name}.py", FULL)
        for name in ("naive", "step1_weight", "step2_nan_check", "step4_tensor_update")
    ],
    "segmentation": [
        (f"examples/segmentation/{name}.py", [])
        for name in ("original", "step1_where", "step2_sort", "step3_ignore_index")
    ],
}
WARM_UP, ACTIVE, TIMED = 8, 4, 20
"""Optimizer steps that are let pass, that are profiled, that are timed."""


class Enough(BaseException):
    """Ends a script that has been seen for long enough."""


def run(script: str, words: list[str], on_step: Any) -> None:
    """Run a script as it is, and call `on_step` with the number of each optimizer step."""
    count = 0

    def hook(*_: Any) -> None:
        nonlocal count
        count += 1
        on_step(count)

    path = ROOT / script
    sys.argv = [str(path), *words]
    sys.path.insert(0, str(path.parent))
    handle = register_optimizer_step_post_hook(hook)
    try:
        runpy.run_path(str(path), run_name="__main__")
    except Enough:
        pass
    finally:
        handle.remove()


def profiled(script: str, words: list[str], target: Path, gpu: bool) -> None:
    """The profile of a few steps, as the profiler writes it."""
    from torch._C._profiler import _ExperimentalConfig

    activities = [torch.profiler.ProfilerActivity.CPU]
    options: dict[str, Any] = {}
    if gpu:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
        options["experimental_config"] = _ExperimentalConfig(enable_cuda_sync_events=True)
    profiler = torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(wait=WARM_UP - 2, warmup=2, active=ACTIVE, repeat=1),
        on_trace_ready=lambda made: made.export_chrome_trace(str(target)),
        with_stack=True,
        **options,
    )

    def step(number: int) -> None:
        profiler.step()
        if number >= WARM_UP + ACTIVE + 1:
            raise Enough

    with profiler:
        run(script, words, step)


def timed(script: str, words: list[str]) -> float:
    """Seconds per step without the profiler."""
    began = ended = 0.0

    def step(number: int) -> None:
        nonlocal began, ended
        if number in (WARM_UP, WARM_UP + TIMED):
            torch.cuda.synchronize()
            now = time.perf_counter()
            began, ended = (now, ended) if number == WARM_UP else (began, now)
        if number >= WARM_UP + TIMED:
            raise Enough

    run(script, words, step)
    return (ended - began) / TIMED


def alone(script: str, words: list[str], folder: Path, self_check: bool) -> tuple[Path, float]:
    """Both runs, each in a process of its own; the profile and the seconds per step."""
    target = folder / f"{Path(script).parent.name}-{Path(script).stem}.json"
    shared = [*(["--self-check"] if self_check else []), "--", script, *words]
    subprocess.run([sys.executable, __file__, "--profile-into", str(target), *shared], check=True, cwd=ROOT)
    times = folder / "seconds.json"
    subprocess.run([sys.executable, __file__, "--time-into", str(times), *shared], check=True, cwd=ROOT)
    packed = target.with_suffix(".json.gz")
    with target.open("rb") as plain, gzip.open(packed, "wb") as file:
        shutil.copyfileobj(plain, file)
    return packed, float(json.loads(times.read_text()))


def compare(before: Path, after: Path, seconds: tuple[float, float]) -> list[object]:
    """A row of the sheet: what leaving out the waits that went was to save, and what it did."""
    from gapless.analyze.profile.findings import findings
    from gapless.analyze.profile.profile import profile
    from gapless.trace.read import read

    timeline = read(before)
    first, second = profile(timeline), profile(read(after))
    kept = {one.code for one in findings([second])}
    gone = sorted({one.code for one in findings([first]) if one.code[:4] == "GAP1"} - kept)
    predicted = 0.0
    if gone:
        prices = profile(timeline, asked=gone).prices
        if prices is not None and prices.asked is not None:
            predicted = prices.asked.saved / max(prices.span, 1)
    measured = 1 - seconds[1] / seconds[0]
    name = f"{before.name.split('.')[0]} → {after.name.split('.')[0].split('-')[-1]}"
    return [
        name,
        ", ".join(gone) or "none",
        f"{1e3 * seconds[0]:.2f}",
        f"{1e3 * seconds[1]:.2f}",
        f"{100 * predicted:.1f} %",
        f"{100 * measured:.1f} %",
        f"{100 * (predicted - measured):+.1f}",
    ]


def checked(profile: Path) -> None:
    """Without a device: the file is read, and holds the steps."""
    from gapless.trace.read import read

    timeline = read(profile)
    steps = [name for name in timeline.names if name.startswith("ProfilerStep#")]
    if len(steps) < ACTIVE:
        raise SystemExit(f"{profile} holds {len(steps)} steps, not {ACTIVE}")


def sheet(rows: list[list[object]]) -> str:
    method = (
        f"profiles of {ACTIVE} steps after {WARM_UP}, with stacks and synchronization events; times of "
        f"{TIMED} steps without the profiler; predicted: the replay without the waits the next stage lacks"
    )
    columns = ["stages", "waits that went", "ms before", "ms after", "predicted", "measured", "points apart"]
    header = _sheet.header("Predicted and measured gains", "python benchmarks/gpu/profiles.py", method)
    return header + _sheet.table(columns, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=None, help="keep the profiles in this folder")
    parser.add_argument("--self-check", action="store_true", help="the emulated device in the GPU's place")
    parser.add_argument("--profile-into", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--time-into", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("script", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.profile_into or options.time_into:
        from gapless.emulate.emulator import Emulator

        with Emulator() if options.self_check else nullcontext():
            script, *words = options.script
            if options.profile_into:
                profiled(script, words, options.profile_into, gpu=not options.self_check)
            else:
                options.time_into.write_text(json.dumps(timed(script, words)))
        return 0
    if not options.self_check and not torch.cuda.is_available():
        print("no GPU here: nothing is measured (--self-check runs without one)", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.out or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rows: list[list[object]] = []
        for chain in CHAINS.values():
            made = []
            for script, words in chain:
                print(f"running {script}", file=sys.stderr)
                made.append(alone(script, [] if options.self_check else words, folder, options.self_check))
            for (before, first), (after, second) in pairwise(made):
                if options.self_check:
                    checked(before)
                    checked(after)
                else:
                    rows.append(compare(before, after, (first, second)))
    if options.self_check:
        print("profiles and times of every stage were taken and read")
        return 0
    text = sheet(rows)
    print(text)
    _sheet.write("profiles", text, Path(__file__).parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
