"""Ground truth for whole scripts: where they wait on a real GPU, beside what Gapless predicts.

    python benchmarks/gpu/lines.py                 # on a machine with a GPU: writes lines.md
    python benchmarks/gpu/lines.py --self-check    # anywhere: the emulated device in the GPU's place

The examples and the field scripts of the tests run to their end, three times: while torch's synchronization
debug mode warns, under the profiler with the driver's synchronization events, and under `gapless check
--steps all` in a process that cannot see the GPU. What each way sees, and does not, _seen.py says.
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
from _experiment import ROOT, Found

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
TWO_GPUS = ("multi_gpu_model_parallel",)
ONE_RANK = ("ddp", "fsdp2")
SMALL = ("examples/segmentation/original.py", "tests/field/scripts/gan.py", "tests/field/scripts/ddp.py",
         "tests/field/scripts/transformer_gpt.py")  # fmt: skip
"""What the self-check runs."""
LARGEST = 400 << 20
"""Bytes of a profile that is still read."""


def scripts() -> dict[str, list[str]]:
    """Each script and its arguments."""
    field = sorted(path for path in FIELD.glob("*.py") if path.stem not in TWO_GPUS)
    return EXAMPLES | {path.relative_to(ROOT).as_posix(): [] for path in field}


def environment(script: str) -> dict[str, str]:
    """What a launcher would set: some scripts are of one rank here."""
    if Path(script).stem not in ONE_RANK:
        return {}
    return {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0",
    }  # fmt: skip


def execute(command: list[str]) -> None:
    """The script, as it is, in a folder of its own: some write checkpoints."""
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
    """Waits by line, in one of the three ways."""
    way, script = name.split(" ")
    command = [script, *scripts()[script]]
    os.environ.update(environment(script))
    folder = (ROOT / script).parent
    if way == "predicted":
        return _seen.predicted(command, _experiment.hidden() | environment(script))
    found: Counter[str] = Counter()
    with _experiment.device(emulated):
        if way == "debug":
            with _seen.by_debug_mode(folder, found):
                execute(command)
            return dict(found)
        with _seen.profiler(not emulated) as profiler:
            execute(command)
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "trace.json"
        profiler.export_chrome_trace(str(path))
        if path.stat().st_size > LARGEST:
            raise RuntimeError(f"the profile has {path.stat().st_size >> 20} MB")
        if emulated:
            on_paper(path)
        return _seen.in_profile(path)


def on_paper(path: Path) -> None:
    """Write the device's work that numbers read would have made into a profile that has none."""
    _experiment.of_tests()
    from profiled_gpu import PaperGpu

    document = json.loads(path.read_text())
    document["deviceProperties"] = [{"id": 0, "name": "paper", "numSms": 108, "totalGlobalMem": 1 << 34}]
    document["traceEvents"] += PaperGpu().work(document["traceEvents"])
    path.write_text(json.dumps(document))


def compared(found: Found, way: str, which: int) -> tuple[list[list[object]], int, int, int]:
    """Rows that differ between a way of looking and the prediction; places seen, said, and both."""
    rows: list[list[object]] = []
    seen = said = both = 0
    for script in scripts():
        real, prediction = found.get(f"{way} {script}"), found.get(f"predicted {script}")
        if real is None or prediction is None:
            continue
        told = prediction[which]
        seen, said, both = seen + len(real), said + len(told), both + len(real.keys() & told.keys())
        rows += [
            [script, line, real.get(line, 0), told.get(line, 0)]
            for line in sorted({*real, *told})
            if real.get(line, 0) != told.get(line, 0)
        ]
    return rows, seen, said, both


def sheet(found: Found) -> tuple[str, list[str]]:
    text, wrong = "", []
    ways = (("debug", "Debug mode", "line"), ("profile", "The driver", "function"))
    for which, (way, title, unit) in enumerate(ways):
        rows, seen, said, both = compared(found, way, which)
        text += f"## {title}\n\n{seen} {unit}s wait, {said} were said to, {both} are both: "
        text += f"precision {both / max(said, 1):.3f}, recall {both / max(seen, 1):.3f}. "
        text += f"{len(rows)} differ in number:\n\n"
        text += _sheet.table(["script", unit, "GPU", "predicted"], rows) + "\n"
        # A profile on paper takes each number that is read for one of the GPU's, and holds no other waits.
        wrong += [f"{row}" for row in rows if way == "debug"]
        wrong += [] if both or not said else [f"{way}: no {unit} is seen that is said"]
    return text + f"Not run: {', '.join(TWO_GPUS)}, which needs two GPUs.\n", wrong


def main() -> int:
    names = list(SMALL if "--self-check" in sys.argv else scripts())
    groups = [([f"{way} {name}" for name in names], 8) for way in ("predicted", "debug", "profile")]
    return _experiment.Stage(
        __doc__, __file__, "Lines that wait",
        "each script three times: debug mode, profiler with the driver's synchronization events, prediction",
        groups, part, sheet, 100,
    ).main()  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
