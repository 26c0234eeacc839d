"""Ground truth for whole scripts: where they wait on a real GPU, beside what Gapless predicts.

    python benchmarks/gpu/lines.py                 # on a machine with a GPU: writes lines.md
    python benchmarks/gpu/lines.py --self-check    # anywhere: the emulated device in the GPU's place

The examples, the field scripts and the rules' cases of the tests run to their end, three times: while torch's
synchronization debug mode warns, under the profiler with the driver's synchronization events, and under
`gapless check --steps all` in a process that cannot see the GPU. What each way sees, and does not, _seen.py
says.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import _experiment
import _seen
import _sheet
from _experiment import ROOT, Results

EXAMPLES = {
    "examples/metrics/naive.py": ["--average", "macro"],
    "examples/metrics/step1_weight.py": [],
    "examples/metrics/step2_nan_check.py": [],
    "examples/metrics/step4_tensor_update.py": [],
    "examples/segmentation/original.py": [],
    "examples/segmentation/step1_where.py": [],
    "examples/segmentation/step2_sort.py": [],
    "examples/segmentation/step3_ignore_index.py": [],
}
FIELD = ROOT / "tests" / "field" / "scripts"
IDIOMS = sorted((ROOT / "tests" / "rules" / "cases").glob("gap1*.py"))[:: _experiment.choose(1, 3)]
"""The cases of the rules, whose lines wait or do not."""
TWO_GPUS = ("multi_gpu_model_parallel",)
OWN_PROFILER = ("profiler_loop",)
"""There is only one profiler at a time."""
ONE_RANK = ("ddp", "fsdp2")
SMALL = (
    "tests/rules/cases/gap112_mask_read.py",
    "examples/segmentation/original.py",
    "tests/field/scripts/gan.py",
    "tests/field/scripts/ddp.py",
    "tests/field/scripts/transformer_gpt.py",
)
"""Run by the self-check."""
MAX_PROFILE_BYTES = 400 << 20
"""Larger profiles are not read."""


def scripts() -> dict[str, list[str]]:
    """Return each script with its arguments."""
    field = sorted(path for path in FIELD.glob("*.py") if path.stem not in TWO_GPUS)
    return EXAMPLES | {path.relative_to(ROOT).as_posix(): [] for path in (*field, *IDIOMS)}


def environment(script: str) -> dict[str, str]:
    """Return the variables a launcher would set for scripts of one rank."""
    if Path(script).stem not in ONE_RANK:
        return {}
    return {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0",
    }  # fmt: skip


def execute(command: list[str]) -> None:
    """Run the script unchanged in a temporary folder: some write checkpoints."""
    path = ROOT / command[0]
    sys.argv = [str(path), *command[1:]]
    sys.path.insert(0, str(path.parent))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as ending:
            if ending.code not in (None, 0):
                raise
        finally:
            os.chdir(ROOT)


def part(name: str, emulated: bool) -> Any:
    """Return the waits by line, seen in one of three ways."""
    way, script = name.split(" ")
    command = [script, *scripts()[script]]
    os.environ.update(environment(script))
    folder = (ROOT / script).parent
    if way == "predicted":
        return _seen.predict_waits(command, _experiment.environment_without_gpu() | environment(script))
    counts: Counter[str] = Counter()
    with _experiment.device(emulated):
        if way == "debug":
            with _seen.record_debug_mode(folder, counts):
                execute(command)
            return dict(counts)
        with _seen.profiler(not emulated) as profiler:
            execute(command)
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "trace.json"
        profiler.export_chrome_trace(str(path))
        if path.stat().st_size > MAX_PROFILE_BYTES:
            raise RuntimeError(f"the profile has {path.stat().st_size >> 20} MB")
        if emulated:
            on_paper(path)
        return _seen.waits_in_profile(path)


def on_paper(path: Path) -> None:
    """Add to a profile without device work the work that its reads would have caused."""
    _experiment.add_tests_to_path()
    from fake_profiler import PaperGpu

    document = json.loads(path.read_text())
    document["deviceProperties"] = [{"id": 0, "name": "paper", "numSms": 108, "totalGlobalMem": 1 << 34}]
    document["traceEvents"] += PaperGpu().work(document["traceEvents"])
    path.write_text(json.dumps(document))


def compare(results: Results, way: str, which: int) -> tuple[list[list[object]], int, int, int]:
    """Return the rows that differ from the prediction, and the numbers of places seen, predicted, and
    both."""
    rows: list[list[object]] = []
    waiting = said = both = 0
    for script in scripts():
        real, prediction = results.get(f"{way} {script}"), results.get(f"predicted {script}")
        if real is None or prediction is None:
            continue
        predicted_lines = prediction[which]
        waiting, said, both = (
            waiting + len(real),
            said + len(predicted_lines),
            both + len(real.keys() & predicted_lines.keys()),
        )
        rows += [
            [script, line, real.get(line, 0), predicted_lines.get(line, 0)]
            for line in sorted({*real, *predicted_lines})
            if real.get(line, 0) != predicted_lines.get(line, 0)
        ]
    return rows, waiting, said, both


def sheet(results: Results) -> tuple[str, list[str]]:
    text, wrong = "", []
    ways = (("debug", "Debug mode", "line"), ("profile", "The driver", "function"))
    for which, (way, title, unit) in enumerate(ways):
        rows, waiting, said, both = compare(results, way, which)
        text += f"## {title}\n\n{waiting} {unit}s wait, {said} were said to, {both} are both: "
        text += f"precision {both / max(said, 1):.3f}, recall {both / max(waiting, 1):.3f}. "
        text += f"{len(rows)} differ in number:\n\n"
        text += _sheet.table(["script", unit, "GPU", "predicted"], rows) + "\n"
        # A profile on paper takes each number that is read for one of the GPU's, and holds no other waits.
        wrong += [f"{row}" for row in rows if way == "debug"]
        wrong += [] if both or not said else [f"{way}: no {unit} is seen that is said"]
    return text + f"Not run: {', '.join(TWO_GPUS)}, which needs two GPUs.\n", wrong


def script() -> _experiment.Script:
    # profiles.py profiles a few steps of the examples with metrics; all of them would take minutes.
    names = list(SMALL if _experiment.SELF_CHECK and not _experiment.SHORT else scripts())
    return _experiment.Script(
        __doc__, __file__, "Lines that wait",
        "each script three times: debug mode, profiler with the driver's synchronization events, prediction",
        part, sheet, [
            f"{way} {name}"
            for name in names
            for way in ("debug", "profile", "predicted")
            if way != "profile"
            or not (name.startswith("examples/metrics/") or Path(name).stem in OWN_PROFILER)
        ],
        seconds=100,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(script().main())
