"""What the scripts here share: measured on a GPU, or checked on the emulated device in its place.

A script's parts run each in a process of its own, so that one that fails (no memory, no Triton, no CUPTI)
loses nothing but itself; what each gave is kept at once in `STATE`, so that a stage that is ended goes on
where it was.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
STATE = HERE / ".state"
"""Results so far; not under version control, and needed to continue on another machine."""
KEPT = HERE / "kept"
"""Profiles and snapshots of a real GPU."""
_PATH = [str(ROOT / "src"), str(HERE.parent), str(HERE)]
sys.path[:0] = [folder for folder in _PATH if folder not in sys.path]
# Gapless need not be installed; what is started here finds it, too.
os.environ["PYTHONPATH"] = os.pathsep.join([_PATH[0], *filter(None, [os.environ.get("PYTHONPATH")])])
import _sheet
import torch

REAL = torch.cuda.is_available()
"""Whether there is a GPU; determined before an emulated one could take its place."""
EMULATED = "NOT MEASURED: made on the emulated device, to check the script. No figure here is of a GPU.\n\n"
Found = dict[str, Any]


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every script here."""
    options_parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    options_parser.add_argument(
        "--self-check", action="store_true", help="run the script small, without a GPU"
    )
    return options_parser


def no_gpu() -> int:
    """Say that nothing can be measured; return the exit status."""
    print("no GPU here: nothing is measured (--self-check runs without one)", file=sys.stderr)
    return 2


def keep(name: str, title: str, method: str, text: str, self_check: bool) -> str:
    """Write and return a script's sheet; one of the emulated device says so and goes to `STATE`."""
    page = _sheet.header(title, f"python benchmarks/gpu/{name}.py", method) + text
    if self_check:
        page = EMULATED + page
        STATE.mkdir(exist_ok=True)
    elif not REAL:
        raise RuntimeError("a sheet of this folder is of a real GPU, and there is none")
    _sheet.write(name, page, STATE if self_check else HERE)
    return page


@contextmanager
def device(emulated: bool, **options: Any) -> Iterator[None]:
    """Emulate the device if `emulated`, else use the GPU."""
    if not emulated:
        yield
        return
    from gapless.emulation.emulator import Emulator
    from gapless.emulation.options import EmulatorOptions

    with Emulator(EmulatorOptions(**options)):
        yield


@contextmanager
def kept(name: str, emulated: bool) -> Iterator[Path]:
    """Yield a folder for files: permanent for a real GPU, temporary for the emulated device."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if emulated else KEPT / name
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


def environment_without_gpu() -> dict[str, str]:
    """Return the environment of a prediction, which hides the GPU."""
    return {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def load_benchmark(name: str) -> ModuleType:
    """Return the module ``benchmarks/NAME.py``, which may have the name of a script here."""
    own = f"{name}_of_benchmarks"
    if own not in sys.modules:
        spec = importlib.util.spec_from_file_location(own, HERE.parent / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[own] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[own])
    return sys.modules[own]


def add_tests_to_path() -> None:
    """Make the tests' cases importable."""
    sys.path.insert(0, str(ROOT / "tests"))


# Parts --------------------------------------------------------------------------------------------


def run_for(command: Sequence[str], seconds: float, **options: Any) -> int | None:
    """Run a command in a session of its own for at most `seconds`, then end all it started; return its exit
    status, or None if it took too long."""
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def run(command: Sequence[str], seconds: float, **options: Any) -> str:
    """Run a command quietly; return "" or how it failed."""
    with tempfile.TemporaryFile() as errors:
        status = run_for(command, seconds, stdout=subprocess.DEVNULL, stderr=errors, **options)
        errors.seek(0)
        lines = [line for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
    if status is None:
        return f"not done after {seconds:g} s"
    return "" if status == 0 else f"exit status {status}: {' | '.join(lines[-3:])[-600:]}"


@dataclass
class Stage:
    """A script of parts. `part` returns JSON data, in a process of its own; `sheet` turns the results of
    all parts so far into Markdown, and lists what is wrong in a self-check.

    `groups` are names of parts, and how many of them may run at once: those that time something run alone.
    """

    doc: str | None
    file: str
    title: str
    method: str
    groups: Sequence[tuple[Sequence[str], int]]
    part: Callable[[str, bool], Any]
    sheet: Callable[[Found], tuple[str, list[str]]]
    seconds: float = 120
    """Time limit of one part, s."""

    @property
    def name(self) -> str:
        return Path(self.file).stem

    def main(self) -> int:
        options_of = parser(self.doc)
        options_of.add_argument("--part", help=argparse.SUPPRESS)
        options_of.add_argument("--into", type=Path, help=argparse.SUPPRESS)
        options_of.add_argument("--only", nargs="*", default=[], help="parts whose names begin so")
        options = options_of.parse_args()
        warnings.simplefilter("ignore")
        if options.part:
            options.into.write_text(json.dumps(self.part(options.part, options.self_check)))
            return 0
        if not options.self_check and not REAL:
            return no_gpu()
        only = tuple(options.only) or ("",)
        return self.measure(options.self_check, lambda name: name.startswith(only))

    def measure(self, self_check: bool, is_wanted: Callable[[str], bool]) -> int:
        """Run the parts without a result; write the sheet after each group."""
        kept = Kept(None if self_check else STATE / f"{self.name}.json", _sheet.commit())
        failed: dict[str, str] = {}
        page, wrong = "", []
        for names, at_once in self.groups:
            missing = [name for name in names if is_wanted(name) and name not in kept.found]
            with ThreadPoolExecutor(min(at_once, os.cpu_count() or 1)) as pool:
                outcomes = pool.map(lambda part: self.alone(part, self_check, kept), missing)
                for name, error in zip(missing, outcomes, strict=True):
                    if error:
                        failed[name] = error
                        print(f"{name}: {error}", file=sys.stderr)
            text, wrong = self.sheet(kept.found)
            rows: list[list[object]] = [[name, error.replace("|", "/")] for name, error in failed.items()]
            text += "\n## Not measured\n\n" + _sheet.table(["part", "why"], rows) if rows else ""
            page = keep(self.name, self.title, self.method, text, self_check)
        print(page)
        if self_check:
            print("\n".join(wrong), file=sys.stderr)
        return 1 if failed or (self_check and wrong) else 0

    def alone(self, name: str, self_check: bool, kept: Kept) -> str:
        """Run a part and keep its result; return "" or how it failed."""
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "found.json"
            command = [sys.executable, self.file, "--part", name, "--into", str(target)]
            error = run([*command, *(["--self-check"] if self_check else [])], self.seconds, cwd=ROOT)
            if not error:
                kept.add(name, json.loads(target.read_text()))
        return error


class Kept:
    """Results of a stage's parts at this commit, in a file written after each."""

    def __init__(self, path: Path | None, commit: str) -> None:
        self.path, self.commit, self.found = path, commit, Found()
        if path is not None and path.exists():
            saved = json.loads(path.read_text())
            self.found = saved["found"] if saved["commit"] == commit else {}

    def add(self, name: str, value: Any) -> None:
        self.found[name] = value
        if self.path is not None:
            self.path.parent.mkdir(exist_ok=True)
            new = self.path.with_suffix(".new")
            new.write_text(json.dumps({"commit": self.commit, "found": self.found}, indent=1) + "\n")
            new.replace(self.path)


# Experiments in stages ----------------------------------------------------------------------------


def experiment(doc: str | None, module: ModuleType, name: str, waits: list[float]) -> int:
    """Measure the experiment `module`; `waits` are expected of its stages in a self-check."""
    import _stages

    options_of = parser(doc)
    options_of.add_argument("--rounds", type=int, default=15)
    options_of.add_argument("--block", type=int, default=20)
    options = options_of.parse_args()
    warnings.simplefilter("ignore")
    if options.self_check:
        return check_stages(_stages.measure_experiment(module, module.TINY, 1, 1), waits)
    if not REAL:
        return no_gpu()
    rows = _stages.measure_experiment(module, module.FULL, options.rounds, options.block)
    text = module.sheet(rows, module.FULL, options.rounds, options.block, f"python benchmarks/gpu/{name}.py")
    print(text)
    _sheet.write(name, text, HERE)
    stages = [
        {"name": row.name, "step": row.step.median, "low": row.step.low, "high": row.step.high,
         "predicted": row.predicted, "idle": row.profile.idle if row.profile else 0}
        for row in rows
    ]  # fmt: skip
    (HERE / f"{name}.json").write_text(json.dumps(stages, indent=1) + "\n")
    return 0


def check_stages(rows: Sequence[Any], waits: list[float]) -> int:
    """Check that every stage ran and was measured in every way, and waited as expected; return an exit
    status."""
    import _stages

    print(EMULATED + _stages.table(rows))
    waits_seen = [row.emulated for row in rows]
    whole = all(row.step.median > 0 and row.light > 0 and row.heavy > 0 for row in rows)
    priced = all(row.predicted > 0 for row, following in pairwise(rows) if row.emulated > following.emulated)
    if waits_seen != waits:
        print(f"waits {waits_seen}, and not {waits}", file=sys.stderr)
    return 0 if waits_seen == waits and whole and priced else 1
