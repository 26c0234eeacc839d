"""Ground truth for whole scripts: the lines that wait on a real GPU, beside those Gapless predicts.

    python benchmarks/gpu/lines.py                 # on a machine with a GPU: the examples; writes lines.md
    python benchmarks/gpu/lines.py --self-check    # anywhere: the emulated device in the GPU's place

Each script runs to its end while torch's synchronization debug mode warns; each warning is a wait, counted
at the innermost line of the script's own folder. Then `gapless check --steps all` predicts the same run, in a
process that cannot see the GPU. Debug mode does not see explicit waits, copies from pageable memory asked not
to block, nor what backward waits for (another thread runs it, with no Python frame): those are left out on
both sides. Put ``--`` before a script that has options of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
import _sheet
import torch

SCRIPTS = [
    ["examples/metrics/naive.py", "--average", "macro"],
    ["examples/metrics/step1_weight.py"],
    ["examples/metrics/step2_nan_check.py"],
    ["examples/metrics/step4_tensor_update.py"],
    ["examples/segmentation/original.py"],
    ["examples/segmentation/step1_where.py"],
    ["examples/segmentation/step2_sort.py"],
    ["examples/segmentation/step3_ignore_index.py"],
]
_WORDS = "synchronizing CUDA operation"
_UNSEEN = ("explicit", "free")

Lines = dict[str, int]


def measure(command: list[str]) -> Lines:
    """Run a script in this process with the debug mode on: waits by ``file:line``."""
    script = ROOT / command[0]
    found: Counter[str] = Counter()

    def hear(message: Any, *_: Any, **__: Any) -> None:
        if _WORDS not in str(message):
            return
        frames = traceback.extract_stack()
        if any(frame.name == "_engine_run_backward" for frame in frames):
            return
        own = [frame for frame in frames if Path(frame.filename).parent == script.parent]
        if own:
            found[f"{Path(own[-1].filename).name}:{own[-1].lineno}"] += 1

    sys.argv = [str(script), *command[1:]]
    sys.path.insert(0, str(script.parent))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = hear
        torch.cuda.set_sync_debug_mode("warn")
        runpy.run_path(str(script), run_name="__main__")
    return dict(found)


def predict(command: list[str]) -> Lines:
    """The same counts, from a session of `gapless check`."""
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "run.gapless.json"
        check = [sys.executable, "-m", "gapless", "check", "-q", "--steps", "all", "-o", str(saved)]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        subprocess.run([*check, *command], cwd=ROOT, check=True, env=environment, stdout=subprocess.DEVNULL)
        from gapless.model.session import load

        session = load(saved)
    found: Counter[str] = Counter()
    folder_of_script = (ROOT / command[0]).parent
    for event in session.events:
        site = session.sites[event.site]
        own = [frame for frame in site.stack if Path(frame.file).parent == folder_of_script]
        if site.mechanism not in _UNSEEN and not site.in_backward and own:
            found[f"{Path(own[0].file).name}:{own[0].line}"] += event.waits
    return dict(found)


def in_process(command: list[str], self_check: bool) -> Lines:
    """`measure` in a process of its own, so that no script leaves anything to the next."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "measured.json"
        flags = ["--measure-into", str(target), *(["--self-check"] if self_check else [])]
        subprocess.run(
            [sys.executable, __file__, *flags, "--", *command], check=True, stdout=subprocess.DEVNULL
        )
        lines: Lines = json.loads(target.read_text())
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--self-check", action="store_true", help="put the emulated device in the GPU's place"
    )
    parser.add_argument("--measure-into", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("script", nargs="*", help="a script of this project and its arguments")
    options = parser.parse_args()
    if options.measure_into:
        from gapless.emulate.emulator import Emulator

        with Emulator() if options.self_check else nullcontext():
            options.measure_into.write_text(json.dumps(measure(options.script)))
        return 0
    if not options.self_check and not torch.cuda.is_available():
        print("no GPU here: nothing is measured (--self-check runs without one)", file=sys.stderr)
        return 2
    rows: list[list[object]] = []
    for command in [options.script] if options.script else SCRIPTS:
        real, said = in_process(command, options.self_check), predict(command)
        rows += [
            [" ".join(command), line, real.get(line, 0), said.get(line, 0)] for line in sorted({*real, *said})
        ]
    wrong = sum(row[2] != row[3] for row in rows)
    text = f"{len(rows)} lines wait on one side at least; {wrong} differ in number.\n\n"
    text += _sheet.table(["script", "line", "GPU", "predicted"], rows)
    print(text)
    if options.self_check:
        return 1 if wrong else 0
    header = _sheet.header("Lines that wait", "python benchmarks/gpu/lines.py", "see the script's own words")
    _sheet.write("lines", header + text, Path(__file__).parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
