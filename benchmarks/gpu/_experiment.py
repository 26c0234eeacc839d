"""What the scripts here share: measured on a GPU, or checked on the emulated device in its place.

A script's parts run each in a process of its own, so that one that fails (no memory, no Triton, no CUPTI)
loses nothing but itself. Each result is kept at once in `STATE`, so that a run that is stopped goes on where
it was, on another machine too, and what needs no GPU can be completed where there is none.
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
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
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
SELF_CHECK = "--self-check" in sys.argv
"""Whether the emulated device takes the GPU's place, with small sizes."""
SHORT = "--short" in sys.argv
"""Whether samples and few repetitions are measured, so that every script gets its turn in some minutes."""
EMULATED = "NOT MEASURED: made on the emulated device, to check the script. No figure here is of a GPU.\n\n"
BRIEF = "; the short form: samples, and few repetitions"
GPU = "NVIDIA H100 80GB HBM3"
"""What predictions are of where no GPU was seen."""
SLOWDOWN = 8
"""A self-check gets so many times a part's seconds: two busy cores instead of sixteen and a GPU."""
Results = dict[str, Any]


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every script here."""
    options_parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    options_parser.add_argument("--self-check", action="store_true", help="run it small, without a GPU")
    options_parser.add_argument("--short", action="store_true", help="samples, and few repetitions")
    return options_parser


def no_gpu() -> int:
    """Say that nothing can be measured; return the exit status."""
    print("no GPU here: nothing is measured (--self-check runs without one)", file=sys.stderr)
    return 2


def choose(whole: Any, short: Any) -> Any:
    """Return the size of the form that is measured."""
    return short if SHORT else whole


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
    return {**os.environ, "MEASURED_GPU": gpu_name(), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def gpu_name() -> str:
    """Return the GPU's name: this machine's, that of the measurements, or else `GPU`."""
    return torch.cuda.get_device_name() if REAL else os.environ.get("MEASURED_GPU", GPU)


def load_script(path: Path, name: str) -> ModuleType:
    """Import a script as `name`, once; other folders have scripts of the same file name."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def load_benchmark(name: str) -> ModuleType:
    """Return the module ``benchmarks/NAME.py``, which may have the name of a script here."""
    return load_script(HERE.parent / f"{name}.py", f"{name}_of_benchmarks")


def add_tests_to_path() -> None:
    """Make the tests' cases importable."""
    sys.path.insert(0, str(ROOT / "tests"))


# Processes ----------------------------------------------------------------------------------------


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
        return f"not done after {seconds:.0f} s"
    return "" if status == 0 else f"exit status {status}: {' | '.join(lines[-3:])[-600:]}"


# Results ------------------------------------------------------------------------------------------


class Kept:
    """Results of a script's parts, each with the facts of its measurement, in a file written after each.

    The whole form, the short form and the self-check have files of their own.
    """

    def __init__(self, name: str) -> None:
        form = "short" if SHORT else "whole"
        self.path = (
            STATE / f"self-check-{form}" / f"{name}.json" if SELF_CHECK else STATE / form / f"{name}.json"
        )
        self.entries: dict[str, Results] = json.loads(self.path.read_text()) if self.path.exists() else {}
        self._lock = threading.Lock()

    @property
    def results(self) -> Results:
        """What each part returned, by its name."""
        return {name: entry["result"] for name, entry in self.entries.items() if "result" in entry}

    @property
    def failures(self) -> dict[str, str]:
        """How each part failed that has no result."""
        return {name: entry["failed"] for name, entry in self.entries.items() if "failed" in entry}

    def facts(self) -> list[dict[str, str]]:
        """Return the facts of all measurements; those on a GPU come first."""
        facts = [entry["facts"] for entry in self.entries.values() if "result" in entry]
        return sorted(facts, key=lambda entry: entry["hardware"].endswith("GPU: none"))

    def add(self, name: str, **entry: Any) -> None:
        """Keep a part's ``result`` with its ``facts``, or how it ``failed``."""
        with self._lock:
            self.entries[name] = entry
            self.path.parent.mkdir(parents=True, exist_ok=True)
            new = self.path.with_suffix(".new")
            new.write_text(json.dumps(self.entries, indent=1) + "\n")
            new.replace(self.path)


# Scripts ------------------------------------------------------------------------------------------


@dataclass
class Script:
    """A script of parts. `part` returns JSON data, in a process of its own; `sheet` turns the results of
    all parts so far into Markdown, and lists what is wrong in a self-check.

    `together` are parts that time nothing: they may run while others run. Those `alone` need the machine for
    themselves. A part whose name begins with ``predicted`` needs no GPU and sees none.
    """

    doc: str | None
    file: str
    title: str
    method: str
    part: Callable[[str, bool], Any]
    sheet: Callable[[Results], tuple[str, list[str]]]
    together: Sequence[str] = ()
    alone: Sequence[str] = ()
    seconds: float = 120
    """Time limit of one part, s."""
    _kept: Kept | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return Path(self.file).stem

    @property
    def kept(self) -> Kept:
        """The results so far."""
        self._kept = self._kept or Kept(self.name)
        return self._kept

    def main(self) -> int:
        """Run the command line of the script; return the exit status."""
        options_of = parser(self.doc)
        options_of.add_argument("--part", help=argparse.SUPPRESS)
        options_of.add_argument("--into", type=Path, help=argparse.SUPPRESS)
        options_of.add_argument("--only", nargs="*", default=[], help="parts whose names begin so")
        options_of.add_argument("--again", action="store_true", help="also parts that have a result")
        options = options_of.parse_args()
        warnings.simplefilter("ignore")
        if options.part:
            result = self.part(options.part, SELF_CHECK)
            options.into.write_text(json.dumps({"result": result, "facts": _sheet.facts()}))
            return 0
        if not SELF_CHECK and not REAL:
            return no_gpu()
        only = tuple(options.only) or ("",)
        again = options.again or SELF_CHECK  # the script may have been edited since
        return run_scripts([self], 1e9, lambda _, name: name.startswith(only), again=again)

    def run_part(self, name: str, seconds: float) -> str:
        """Run a part for at most `seconds` and keep its result; return "" or how it failed."""
        options = [word for word in ("--self-check", "--short") if word in sys.argv]
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "result.json"
            command = [sys.executable, self.file, "--part", name, "--into", str(target), *options]
            environment = environment_without_gpu() if name.startswith("predicted") else None
            error = run(command, seconds, cwd=ROOT, env=environment)
            if error:
                self.kept.add(name, failed=error)
            else:
                self.kept.add(name, **json.loads(target.read_text()))
        return error

    def write_sheet(self) -> tuple[str, list[str]]:
        """Write the sheet of the results so far; return it, and what a self-check finds wrong."""
        text, wrong = self.sheet(self.kept.results)
        rows: list[list[object]] = [
            [name, error.replace("|", "/")]
            for name, error in self.kept.failures.items()
            if name in (*self.together, *self.alone)
        ]
        text += "\n## Not measured\n\n" + _sheet.table(["part", "why"], rows) if rows else ""
        return keep(self.name, self.title, self.method, text, self.kept.facts()), wrong


def keep(name: str, title: str, method: str, text: str, facts: Sequence[dict[str, str]]) -> str:
    """Write and return a script's sheet; that of the emulated device says so and goes to `STATE`."""
    command = f"python benchmarks/gpu/{name}.py{' --short' if SHORT else ''}"
    page = _sheet.header(title, command, method + (BRIEF if SHORT else ""), facts) + text
    if SELF_CHECK:
        page = EMULATED + page
    elif not any("GPU: none" not in entry["hardware"] for entry in facts):
        raise RuntimeError("a sheet of this folder is of a real GPU, and none was measured")
    _sheet.write(name, page, STATE if SELF_CHECK else HERE)
    return page


# The order of parts -------------------------------------------------------------------------------

Job = tuple[Script, str]


def breadth_first(lists: Sequence[Sequence[Job]]) -> list[Job]:
    """Return the first job of each list, then the second of each, and so on."""
    return [job for jobs in zip_longest(*lists) for job in jobs if job is not None]


def pending(
    scripts: Sequence[Script], alone: bool, wanted: Callable[[Script, str], bool], again: bool
) -> list[Job]:
    """Return the parts without a result, breadth first over the scripts."""
    lists = []
    for script in scripts:
        names = script.alone if alone else script.together
        results = {} if again else script.kept.results
        lists.append([(script, name) for name in names if wanted(script, name) and name not in results])
    return breadth_first(lists)


def run_scripts(
    scripts: Sequence[Script],
    budget: float,
    wanted: Callable[[Script, str], bool] = lambda script, name: True,
    again: bool = False,
    after: Callable[[], None] = lambda: None,
    share: float = 1.0,
) -> int:
    """Run the parts without a result within `budget` seconds; return the exit status.

    Those that time nothing come first, as many at once as there are cores, for at most `share` of the budget;
    then those that need the machine for themselves, one by one. Sheets are written, and `after` is called,
    between the two and after each part that runs alone. What is stopped is not lost: every result is kept.
    """
    began = time.monotonic()
    problems: list[str] = []

    def run_one(job: Job, end: float) -> None:
        script, name = job
        seconds = min(script.seconds * (SLOWDOWN if SELF_CHECK else 1), end - time.monotonic())
        if seconds <= 0:
            return
        since = time.monotonic()
        error = script.run_part(name, seconds)
        now = time.monotonic()
        line = f"{now - began:5.0f} s {script.name}: {name}: {now - since:.0f} s {error}"
        print(line, file=sys.stderr, flush=True)

    def write(some: Sequence[Script]) -> None:
        for script in some:
            try:
                problems.extend(f"{script.name}: {problem}" for problem in script.write_sheet()[1])
            except Exception:
                problems.append(f"{script.name}: {traceback.format_exc(limit=-3)}")
        after()

    jobs = pending(scripts, False, wanted, again)
    with ThreadPoolExecutor(max(2, (os.cpu_count() or 2) - 2)) as pool:
        list(pool.map(lambda job: run_one(job, began + budget * share), jobs))
    write([script for script in scripts if script.kept.results])
    for job in pending(scripts, True, wanted, again):
        run_one(job, began + budget)
        if job[0].kept.results:
            write([job[0]])
    problems.clear()
    write([script for script in scripts if script.kept.results])
    print("\n".join(problems), file=sys.stderr)
    left = [job for alone in (False, True) for job in pending(scripts, alone, wanted, False)]
    return 1 if left or problems else 0
