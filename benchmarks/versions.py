"""Field scripts, idioms, the table of waits and the emulation's tests on each supported version of torch.

Makes an environment for each, and deletes it again: that takes hours, and a gigabyte of download for each.
Results are kept in a folder, and the sheet's rows are written of all that are there, the others being left as
they are, so it can be run in pieces: some versions with their names, some ``--groups``. With
``TORCH_INDEX``, the address of an index of CPU builds, torch is taken from there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import _cuda_stand_ins
import _sheet

ROOT = _sheet.HERE.parent
PLAN = (
    ("2.4.1", "3.10"), ("2.5.1", "3.11"), ("2.6.0", "3.12"), ("2.7.1", "3.13"), ("2.8.0", "3.11"),
    ("2.9.1", "3.12"), ("2.10.0", "3.13"), ("2.11.0", "3.10"), ("2.12.1", "3.12"), ("2.13.0", "3.11"),
    ("2.13.0", "3.14"), ("2.14.1", "3.11"), ("2.15.0", "3.12"),
)  # fmt: skip
"""The latest release of each supported torch; each supported Python at least once."""

TOOLS = (
    "click", "expecttest", "hypothesis", "jinja2", "lightning-utilities", "msgspec", "numpy", "pytest",
    "pytest-xdist", "pyyaml", "rich", "scipy",
)  # fmt: skip
ABOVE_TORCH = ("torchmetrics",)
"""Depends on torch: pip would add torch's dependencies, with CUDA's libraries."""
GROUPS = {
    "field scripts": ("tests/field/test_field.py", "-m", "not framework"),
    "idioms": ("tests/rules/test_cases.py", "tests/wild"),
    "table of waits": ("tests/emulation/test_waits_table.py",),
    "emulation": (
        "tests/emulation", "tests/ops", "tests/test_torch_internals.py",
        "--ignore=tests/emulation/test_waits_table.py", "--ignore=tests/emulation/test_op_db.py",
    ),
}  # fmt: skip
_OF_CUDA = re.compile(r"(nvidia|cuda|triton|pytorch-triton)", re.IGNORECASE)
_OFF = re.compile(r"torch 2\.\d+ ")
"""Prefix of the skip message of a test for a feature this torch lacks."""


class Missing(Exception):
    """Something an environment needs is not on this machine or the package index."""


class ScratchEnvironment:
    """An environment with one torch and one Python."""

    def __init__(self, torch: str, python: str, folder: Path, real: bool) -> None:
        self.torch, self.version, self.real = torch, python, real
        self.folder = folder / f"torch-{torch}-python-{python}"
        self.python = self.folder / "bin" / "python"
        self.how = ""

    def make(self) -> None:
        """Install torch, what Gapless needs and what its tests need.

        Raises:
            Missing: no such interpreter, or no such torch for it.
        """
        made_already = self.folder / "made"
        if made_already.exists():
            self.how = made_already.read_text()
            return
        self._run([_interpreter(self.version), "-m", "venv", "--clear", str(self.folder)], "no venv")
        index = os.environ.get("TORCH_INDEX")
        if index:
            self._pip("--index-url", index, f"torch=={self.torch}")
            self.how = "by pip, from an index of CPU builds"
        elif self.real:
            self._pip(f"torch=={self.torch}")
            self.how = "by pip, with all it depends on"
        else:
            self._pip("--no-deps", "--no-cache-dir", f"torch=={self.torch}")
            self._pip(*self._needs())
            lib = next(self.folder.glob("lib/python*/site-packages/torch/lib"))
            libraries = _cuda_stand_ins.provide(lib)
            self.how = f"by pip; {len(libraries)} CUDA libraries stood in for" if libraries else "by pip"
        self._pip(*TOOLS)
        self._pip("--no-deps", *ABOVE_TORCH)
        made_already.write_text(self.how)

    def beside(self, ending: str) -> Path:
        """Return a file beside the environment that stays when it is deleted."""
        return self.folder.with_name(f"{self.folder.name}.{ending}")

    def _needs(self) -> list[str]:
        """Return torch's requirements without CUDA's libraries and compilers."""
        code = "from importlib.metadata import requires; print(*requires('torch'), sep='\\n')"
        lines = self._run([str(self.python), "-c", code], "torch says nothing of what it needs").splitlines()
        return [line for line in lines if not _OF_CUDA.match(line) and "extra ==" not in line]

    def _pip(self, *words: str) -> None:
        pip = [str(self.python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        self._run([*pip, *words], f"pip install {' '.join(words)}")

    def _run(self, words: list[str], purpose: str) -> str:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["nothing"]
            raise Missing(f"{purpose}: {said[-1]}")
        return done.stdout

    def ask(self, code: str) -> Any:
        """Return what `code` prints as JSON, with Gapless importable."""
        words = [str(self.python), "-c", f"import json\n{code}"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=self._environment())
        if done.returncode:
            raise Missing((done.stderr.strip().splitlines() or ["nothing was said"])[-1])
        return json.loads(done.stdout)

    def run(self, group: str, processes: int) -> dict[str, list[str]]:
        """Run a group of tests; return the names of those that agreed, differed, were off, or left out."""
        report = self.folder / "report.xml"
        pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(processes)]
        log = self.beside(f"{group}.txt")
        report.unlink(missing_ok=True)
        with log.open("w") as out:
            subprocess.run(
                [str(self.python), *pytest, f"--junitxml={report}", *GROUPS[group]],
                cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, check=False, env=self._environment(),
            )  # fmt: skip
        if not report.exists():
            raise Missing("\n".join(log.read_text().splitlines()[-3:]))
        return _read(report)

    def _environment(self) -> dict[str, str]:
        path = str(ROOT / "src")
        return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def _interpreter(version: str) -> str:
    """Return an interpreter of this version: ``PYTHON3_14`` of the environment, from PATH, or pyenv's.

    Raises:
        Missing: none of them runs.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates = [os.environ.get(f"PYTHON{version.replace('.', '_')}"), shutil.which(f"python{version}")]
    for candidate in [*candidates, *map(str, sorted(pyenv.glob(f"{version}.*/bin/python"))), sys.executable]:
        if candidate is None:
            continue
        said = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=False).stdout
        if said.startswith(f"Python {version}."):
            return candidate
    raise Missing(f"no Python {version} here")


def _read(report: Path) -> dict[str, list[str]]:
    results: dict[str, list[str]] = {"agreed": [], "differed": [], "off": [], "left out": []}
    for case in ET.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            results["differed"].append(name)
        elif skipped is None:
            results["agreed"].append(name)
        elif _OFF.match(skipped.get("message", "")):
            results["off"].append(f"{name} ({skipped.get('message')})")
        else:
            results["left out"].append(name)
    return results


FACTS = """
import torch, numpy, platform
from gapless import torch_internals
print(json.dumps({
    "torch": torch.__version__, "python": platform.python_version(), "numpy": numpy.__version__,
    "cuda": torch.version.cuda, "remarks": [
        torch_internals.off(name) for name, known in torch_internals.NAMES.items()
        if known.without and getattr(torch_internals, name) is None
    ],
}))
"""


def measure(scratch: ScratchEnvironment, groups: list[str], processes: int) -> dict[str, Any]:
    """Make the environment, run the groups, and return the results."""
    kept = scratch.beside("json")
    before = json.loads(kept.read_text()).get("groups", {}) if kept.exists() else {}
    result: dict[str, Any] = {"asked": [scratch.torch, scratch.version], "commit": _sheet.commit()}
    try:
        scratch.make()
        result |= {"how": scratch.how, **scratch.ask(FACTS)}
        result["groups"] = {**before, **{name: scratch.run(name, processes) for name in groups}}
    except Missing as missing:
        result["missing"] = str(missing)
    return result


def sheet(results: list[dict[str, Any]], before: str = "") -> str:
    """Return the sheet in Markdown; versions without results keep their rows of the sheet `before`."""
    rows, notes = _kept_rows(before)
    for result in results:
        pair = (result["asked"][0], result["asked"][1])
        notes.pop(pair, None)
        if "groups" not in result:
            rows[pair] = [*pair, result["missing"], *[""] * (len(GROUPS) + 3)]
            continue
        groups = result["groups"]
        counts = [
            f"{len(states['agreed'])} of {len(states['agreed']) + len(states['differed'])}"
            if (states := groups.get(name))
            else "not run"
            for name in GROUPS
        ]
        differed = [name for states in groups.values() for name in states["differed"]]
        off = [name for states in groups.values() for name in states["off"]]
        build = f"CUDA {result['cuda']}" if result["cuda"] else "CPU"
        how = f"{build}: {result['how']}"
        rows[pair] = [
            result["torch"],
            result["python"],
            how,
            *counts,
            len(differed),
            len(off),
            result["commit"],
        ]
        lines = [
            *(f"- off: {line}" for line in result["remarks"]),
            *(f"- off: {name}" for name in _join_parameters(off)),
        ]
        lines += [f"- differed: `{name}`" for name in differed]
        if lines:
            title = f"torch {pair[0]}, Python {pair[1]}"
            notes[pair] = "\n".join([f"## {title}\n", *lines, ""])
    columns = ["torch", "Python", "installed how", *GROUPS, "differed", "off", "last run at"]
    table = _sheet.table(columns, [rows[pair] for pair in sorted(rows, key=_order)])
    return table + "\n" + "\n".join(notes[pair] for pair in sorted(notes, key=_order))


def _join_parameters(off: list[str]) -> list[str]:
    """Join tests that differ only in parameters and are off for the same reason."""
    tests: dict[tuple[str, ...], list[str]] = {}
    for line in off:
        parts = re.fullmatch(r"(\w+::\w+)\[.*\] (\(torch 2\.\d+ .*\))", line)
        tests.setdefault(parts.groups() if parts else (line,), []).append(line)
    return [
        lines[0] if len(lines) == 1 else f"{key[0]}, {len(lines)} times {key[1]}"
        for key, lines in tests.items()
    ]


def _order(pair: tuple[str, str]) -> list[int]:
    return [int(part) for part in ".".join(pair).split(".")]


def _kept_rows(sheet: str) -> tuple[dict[tuple[str, str], list[object]], dict[tuple[str, str], str]]:
    """Return the rows and notes of a sheet by (torch, Python)."""
    rows: dict[tuple[str, str], list[object]] = {}
    for line in re.findall(r"^\| (\d.*) \|$", sheet, flags=re.MULTILINE):
        cells = [cell.strip() for cell in line.split("|")]
        rows[cells[0].partition("+")[0], ".".join(cells[1].split(".")[:2])] = [*cells]
    notes = {}
    for part in re.split(r"^(?=## torch )", sheet, flags=re.MULTILINE)[1:]:
        version, python = part.splitlines()[0].removeprefix("## torch ").split(", Python ")
        notes[version, python] = part.rstrip("\n") + "\n"
    return rows, notes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="versions of torch (2.5.1), or with a Python: 2.5.1:3.12")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "versions")
    parser.add_argument("--real", action="store_true", help="install CUDA's libraries, too: gigabytes")
    parser.add_argument("--groups", default=",".join(GROUPS), help="what to run, with commas between")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    wanted = parser.parse_args()
    planned = dict.fromkeys(PLAN)
    pairs = [pair for pair in planned if not wanted.only or pair[0] in wanted.only]
    pairs += [(text.split(":")[0], text.split(":")[1]) for text in wanted.only if ":" in text]
    wanted.folder.mkdir(parents=True, exist_ok=True)
    for torch, python in pairs:
        scratch = ScratchEnvironment(torch, python, wanted.folder, wanted.real)
        result = measure(scratch, wanted.groups.split(","), wanted.processes)
        scratch.beside("json").write_text(json.dumps(result, indent=1))
        if not wanted.keep:
            shutil.rmtree(scratch.folder, ignore_errors=True)
    results = [json.loads(path.read_text()) for path in wanted.folder.glob("*.json")]
    method = (
        "an environment for each version, and the tests run unchanged in it: agreed is passed, differed is "
        "failed, off is skipped because this torch lacks what the test is about; tests of libraries that are "
        "not installed there are not counted; each row is of the commit in its last column, and what was run "
        "then may be on another day than that above"
    )
    page = _sheet.SHEETS / "versions.md"
    before = page.read_text() if page.exists() else ""
    text = _sheet.header("Versions of torch and Python", "make versions", method) + sheet(results, before)
    print(_sheet.write("versions", text))


if __name__ == "__main__":
    main()
