"""The compile pass against the compiler itself: graph breaks, recompilations and graphs of whole scripts."""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import _sheet
from _compiled_plain import place_text

HERE = Path(__file__).resolve().parent
CASES = HERE / "compiled_cases"
_CALLS = 20_000
TIMED = ("train_and_eval", "dynamic_batches")
"""Scripts whose compilation is timed; the others take minutes."""


def log_of_compiler(script: Path) -> dict[str, Any]:
    """Return what the compiler logs of `script` on this CPU."""
    words = [sys.executable, str(HERE / "_compiled_plain.py"), str(script)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{script.name} fails with torch alone:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def log_of_check(script: Path) -> dict[str, Any]:
    """Return what `gapless check` says of `script`, in the same form."""
    from gapless.model.session import load

    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "run.gapless.json"
        words = ["check", "--steps", "all", "--no-loader", "--no-prices", "-q", "-o", str(saved), str(script)]
        done = subprocess.run(
            [sys.executable, "-m", "gapless", *words], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{script.name} fails under gapless check:\n{done.stderr[-2000:]}")
        compiled = load(str(saved)).compiled
    breaks = [
        graph_break for report in compiled for graph_break in report.breaks if not graph_break.raises
    ]  # an error is no break
    lines = {graph_break.line for graph_break in breaks} - {None}
    functions = {recompile.line for report in compiled for recompile in report.recompiles}
    name = os.fspath(script)
    return {
        "breaks": sum(graph_break.times for graph_break in breaks),
        "lines": sorted(place_text(name, line.file, str(line.line)) for line in lines),
        "recompiles": sum(report.again for report in compiled),
        "functions": sorted({line.line for line in functions if line is not None and line.file == name}),
        "graphs": sum(report.graphs for report in compiled),
    }


def cost_of_a_call() -> float:
    """Return the microseconds that recording adds to a call of a kind seen before."""
    import torch

    import gapless

    with gapless.emulate():
        x, mask = torch.zeros(4, 8, device="cuda"), torch.zeros(4, 8, dtype=torch.bool, device="cuda")

        def nothing(x: Any, *, mask: Any, scale: float) -> None:
            return None

        compiled = torch.compile(nothing)
        times = []
        for function in (nothing, compiled):
            for _ in range(100):
                function(x, mask=mask, scale=2.0)
            began = time.thread_time()
            for _ in range(_CALLS):
                function(x, mask=mask, scale=2.0)
            times.append((time.thread_time() - began) / _CALLS)
    return (times[1] - times[0]) * 1e6


def processor_time(words: list[str], **environment: str) -> float:
    """Return the CPU seconds of a command with its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, env={**os.environ, **environment}, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def cost_of_the_pass(script: Path) -> tuple[float, float]:
    """Return the CPU seconds that the pass adds to a check, and that compiling (inductor for the CPU,
    uncached) adds to the script."""
    alone = [sys.executable, str(script)]
    check = [sys.executable, "-m", "gapless", "check", "--steps", "all", "--no-loader", "--no-prices", "-q"]
    with tempfile.TemporaryDirectory() as folder:
        uncached = {"TORCHINDUCTOR_CACHE_DIR": folder, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
        compiled = processor_time(alone, TORCHINDUCTOR_COMPILE_THREADS="1", **uncached)
    added = processor_time([*check, str(script)])
    added -= processor_time([*check, "--no-compile-pass", str(script)])
    return added, compiled - processor_time(alone, TORCHDYNAMO_DISABLE="1")


def _cost_table() -> str:
    rows: list[list[object]] = []
    for name in TIMED:
        added, compiled = cost_of_the_pass(CASES / f"{name}.py")
        rows.append([name, f"{added:.1f} s", f"{compiled:.1f} s", f"{added / compiled:.0%}"])
    words = "CPU time that the pass adds to a check, beside what compiling adds to the script on the CPU:"
    return f"\n{words}\n\n" + _sheet.table(["script", "the pass", "compiling", "share"], rows)


def _cell(first: Any, second: Any) -> str:
    if isinstance(first, list):
        first, second = (", ".join(map(str, values)) or "–" for values in (first, second))
    return f"{first}" if first == second else f"**{first}, here {second}**"


def main() -> None:
    """Compare, print and write the sheet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="beginnings of the names of scripts")
    parser.add_argument("--jobs", type=int, default=1, help="scripts at a time")
    parser.add_argument("--cost", action="store_true", help="time the pass and a compilation, no more")
    options = parser.parse_args()
    if options.cost:
        print(_cost_table())
        return
    scripts = [
        script
        for script in sorted(CASES.glob("*.py"))
        if not options.cases or script.name.startswith(tuple(options.cases))
    ]
    with ThreadPoolExecutor(options.jobs) as pool:
        pairs = list(pool.map(lambda script: (log_of_compiler(script), log_of_check(script)), scripts))
    equal = sum(reference == here for reference, here in pairs)
    rows: list[list[object]] = [
        [script.stem, *(_cell(reference[name], here[name]) for name in reference)]
        for script, (reference, here) in zip(scripts, pairs, strict=True)
    ]
    text = _sheet.header(
        "Graph breaks and recompilations, told without a GPU",
        "python benchmarks/compiled.py",
        "each script runs with torch alone on the CPU, where what `TORCH_LOGS=graph_breaks,recompiles` logs "
        'is counted, and under `gapless check`, where it runs on "cuda" and is compiled after the run; lines '
        "are those of the script in which the breaks are and in which recompiled functions begin",
    )
    columns = ["script", "graph breaks", "at lines", "recompilations", "of functions at", "graphs"]
    text += _sheet.table(columns, rows)
    text += f"\n{equal} of {len(rows)} scripts are equal in all five; what differs stands in bold.\n"
    text += f"\nA call whose kind was seen already takes {cost_of_a_call():.1f} µs of the CPU more.\n"
    if options.cases:
        print(text)
    else:
        print(_sheet.write("compiled", text + _cost_table()).read_text())


if __name__ == "__main__":
    main()
