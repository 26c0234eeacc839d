"""What `gapless fix` writes, on a GPU: synchronizations and the time of a step before and after it.

    python benchmarks/gpu/written.py                 # on a machine with a GPU: writes written.md
    python benchmarks/gpu/written.py --self-check    # anywhere: the emulated device in the GPU's place

`gapless fix --write --dirty` edits a copy of each script where no GPU is seen: it writes what its own proof
lets pass. Both versions then run on the device: once to their end under torch's synchronization debug mode,
and once until enough steps are timed, the device synchronized at both ends.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import _experiment
import _seen
import _sheet
import _steps
import torch
from _experiment import ROOT, Results

SCRIPTS = (
    "tests/field/scripts/detection_like.py",
    "tests/field/scripts/gan.py",
    "tests/field/scripts/contrastive.py",
    "tests/field/scripts/gnn.py",
    "tests/field/scripts/mnist_like.py",
    "tests/field/scripts/vae.py",
    "tests/field/scripts/wgan_gp.py",
    "tests/field/scripts/ppo.py",
    "examples/segmentation/original.py",
)
_WRITTEN = re.compile(r"^  GAP\d+ .*\((?:exact|rounding|tried)\)$", re.MULTILINE)
"""A line of `gapless fix` about a change that it wrote."""
WARM_UP, TIMED = 5, 10
"""Optimizer steps that warm up, and that are timed."""


def fix(script: Path) -> int:
    """Let `gapless fix` edit `script`; return how many changes it wrote.

    Raises:
        RuntimeError: it failed.
    """
    command = [sys.executable, "-m", "gapless", "fix", "--write", "--dirty", str(script)]
    done = subprocess.run(
        command, cwd=script.parent, env=_experiment.environment_without_gpu(), capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"gapless fix failed: {done.stderr[-600:]}")
    return len(_WRITTEN.findall(done.stderr))


def measure(script: Path) -> Results:
    """Return the synchronizations of a whole run, and the milliseconds of a step."""
    forget_modules(script.parent)
    waits = _seen.count_waits(lambda: _steps.run(script, [], lambda step: None))
    forget_modules(script.parent)
    torch.cuda.synchronize()
    return {"waits": waits, "step": 1e3 * _steps.seconds(script, [], WARM_UP, TIMED)}


def forget_modules(folder: Path) -> None:
    """Have modules of `folder` imported anew: the other version has its own."""
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").parent == folder:
            del sys.modules[name]
    sys.path[:] = [entry for entry in sys.path if entry != str(folder)]


def part(name: str, emulated: bool) -> Any:
    """Fix a copy of the script and measure both versions."""
    script = ROOT / name
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "project"
        shutil.copytree(script.parent, folder)
        fixed = folder / script.name
        changes = fix(fixed)
        with _experiment.device(emulated):
            return {"changes": changes, "before": measure(script), "after": measure(fixed)}


def sheet(results: Results) -> tuple[str, list[str]]:
    rows: list[list[object]] = []
    wrong = []
    for name, result in results.items():
        before, after = result["before"], result["after"]
        waits = f"{before['waits']} → {after['waits']}"
        times = f"{before['step']:.2f} → {after['step']:.2f}"
        rows.append(
            [Path(name).name, result["changes"], waits, times, f"{before['step'] / after['step']:.2f}×"]
        )
        if after["waits"] >= before["waits"]:
            wrong.append(f"{name}: {waits} synchronizations")
    columns = ["script", "changes", "synchronizations of the run", "ms a step", "faster"]
    return _sheet.table(columns, rows), wrong


def script() -> _experiment.Script:
    scripts = SCRIPTS[1:2] if _experiment.SELF_CHECK else SCRIPTS
    return _experiment.Script(
        __doc__, __file__, "What `gapless fix` writes, on a GPU",
        f"a whole run under debug mode, which sees no explicit waits; {TIMED} optimizer steps after "
        f"{WARM_UP}",
        part, sheet, alone=scripts, seconds=150,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(script().main())
