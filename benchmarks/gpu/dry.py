"""Dry runs at real size: what a machine without a GPU says of a training, beside what the GPU does.

    python benchmarks/gpu/dry.py                 # on a machine with a GPU: writes dry.md
    python benchmarks/gpu/dry.py --self-check    # anywhere: small models, on the emulated device

ResNet-50, GPT-2 (124M), a Llama of 1B fully trained, one of 7B with LoRA in bf16, and one of 7B fully trained
with checkpointing (_sizes.py). Predicted is what `gapless check --dry --memory --gpu THIS` says of the
script; measured are torch's own clock and counters.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import _experiment
import _seen
import _sheet
import _sizes
import _steps
import torch
from _experiment import HERE, Results

WARM_UP, TIMED = 3, 5
KERNEL_STEPS = 2
SHORT_CASES = ("resnet50", "gpt2", "llama-1b")
GIB = 1 << 30
SCRIPT = HERE / "_sizes.py"


def words(case: str, small: bool) -> list[str]:
    return [case, "--steps", str(WARM_UP + TIMED), *(["--small"] if small else [])]


def predict(case: str, small: bool, gpu: str) -> Results:
    """Return what the check predicts: milliseconds of a step with the interval, bytes, calls."""
    from gapless.analyze.reports import report
    from gapless.memory.report import ReportOptions
    from gapless.memory.report import report as of_memory
    from gapless.model.session import load

    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "run.gapless.json"
        options = ["--dry", "--memory", "--gpu", gpu, "--no-loader", "--steps", "all", "-q", "-o", str(saved)]
        done = subprocess.run(
            [sys.executable, "-m", "gapless", "check", *options, str(SCRIPT), *words(case, small)],
            env=_experiment.environment_without_gpu(), capture_output=True, text=True, cwd=folder,
        )  # fmt: skip
        if not saved.exists():
            raise RuntimeError(f"gapless check failed: {done.stderr[-600:]}")
        session = load(saved)
    estimate = report(session).estimate
    if estimate is None or estimate.refused:
        raise RuntimeError(f"no estimate: {estimate and estimate.refused}")
    (run,) = session.memory
    memory = of_memory(run, ReportOptions(tried=())).baseline
    step = estimate.step
    return {
        "step": [duration / 1e6 for duration in (step.least, step.likely, step.most)],
        "allocated": memory.peak_allocated,
        "reserved": memory.peak_reserved,
        "mallocs": memory.mallocs,
        "retries": memory.retries,
    }


def record_kernels(case: str) -> None:
    """Keep a profile of two steps, with shapes."""

    def step(number: int) -> None:
        profiler.step()
        if number == WARM_UP + KERNEL_STEPS:
            raise _steps.StopScript

    with _experiment.kept("profiles", False) as folder:
        target = folder / f"dry-{case}.json.gz"
        profiler = _seen.profiler(
            True,
            stacks=False,
            record_shapes=True,
            schedule=torch.profiler.schedule(wait=1, warmup=WARM_UP - 1, active=KERNEL_STEPS),
            on_trace_ready=lambda finished: finished.export_chrome_trace(str(target)),
        )
        with profiler:
            _steps.run(SCRIPT, words(case, False), step)


def measure(case: str, small: bool) -> Results:
    """Run the script on the device; return its step time and the allocator's counters."""
    if not small:
        torch.cuda.reset_peak_memory_stats()
    step = _steps.seconds(SCRIPT, words(case, small), WARM_UP, TIMED)
    stats = torch.cuda.memory_stats()
    measured = {
        "step": 1e3 * step,
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "mallocs": stats.get("num_device_alloc", stats.get("segment.all.allocated", 0)),
        "retries": stats.get("num_alloc_retries", 0),
    }
    if not small:
        record_kernels(case)
    return measured


def part(name: str, emulated: bool) -> Any:
    way, case = name.split(" ")
    if way == "predicted":
        return predict(case, emulated, _experiment.gpu_name())
    with _experiment.device(emulated, dry=True):
        return measure(case, emulated)


def sheet(results: Results) -> tuple[str, list[str]]:
    rows: list[list[object]] = []
    wrong = []
    for case in cases():
        said, real = results.get(f"predicted {case}"), results.get(f"measured {case}")
        if said is None or real is None:
            wrong.append(f"{case} was not looked at in both ways")
            continue
        least, likely, most = said["step"]
        cells: list[object] = [case, f"{real['step']:.1f}", f"{likely:.1f} ({least:.1f}–{most:.1f})"]
        cells += [f"{likely / max(real['step'], 1e-9):.2f}", "yes" if least <= real["step"] <= most else "no"]
        for kind in ("allocated", "reserved"):
            cells += [f"{real[kind] / GIB:.3f}", f"{said[kind] / GIB:.3f}"]
            cells.append(f"{100 * (said[kind] / max(real[kind], 1) - 1):+.2f} %")
        cells += [f"{real[kind]} / {said[kind]}" for kind in ("mallocs", "retries")]
        rows.append(cells)
        if min(likely, said["allocated"], said["reserved"], said["mallocs"]) <= 0:
            wrong.append(f"{case}: nothing was predicted")
    columns = ["training", "ms a step", "predicted", "predicted / measured", "inside"]
    columns += ["GiB allocated at the peak", "predicted", "off", "GiB reserved", "predicted", "off"]
    columns += ["cudaMalloc, measured / predicted", "retries"]
    return _sheet.table(columns, rows), wrong


def cases() -> Sequence[str]:
    return SHORT_CASES if _experiment.SHORT else _sizes.CASES


def script() -> _experiment.Script:
    return _experiment.Script(
        __doc__, __file__, "Dry runs at real size, and the GPU",
        f"{WARM_UP} steps of warm-up, {TIMED} timed, device synchronized at both ends; peaks of the whole "
        "run; predicted by `gapless check --dry --memory --gpu` with this GPU's name, not seeing the GPU",
        part, sheet, [f"predicted {case}" for case in cases()], [f"measured {case}" for case in cases()], 150,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(script().main())
