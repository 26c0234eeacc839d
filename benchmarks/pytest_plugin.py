"""What the pytest plugin costs a suite that does not use it, and one test that does.

python benchmarks/pytest_plugin.py            # prints the sheet
python benchmarks/pytest_plugin.py --write    # … and keeps it in benchmarks/sheets
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import _sheet

TESTS = 200
SUITES = {
    f"{TESTS} small tests, no marker": ("", "def test_{n}():\n    assert sum(range({n})) >= 0\n", TESTS),
    "50 small tests on the emulated device": (
        "import pytest, torch\npytestmark = pytest.mark.max_waits(0)\n",
        "def test_{n}():\n    x = torch.ones({n} + 1, device='cuda')\n    (x * 2).sum()\n",
        50,
    ),
    "the same 50 on the host": (
        "import torch\n",
        "def test_{n}():\n    x = torch.ones({n} + 1)\n    (x * 2).sum()\n",
        50,
    ),
}


def seconds(folder: Path, *options: str) -> float:
    """Return the seconds of one run of the suite in `folder`, in a process."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(folder)]
    begun = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=dict(os.environ), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return time.perf_counter() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="keep the sheet")
    options = parser.parse_args()
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as place:
        for name, (head, body, count) in SUITES.items():
            folder = Path(place) / name.replace(" ", "_").replace(",", "")
            folder.mkdir()
            (folder / "test_suite.py").write_text(head + "".join(body.format(n=n) for n in range(count)))
            sides: dict[str, list[float]] = {"with": [], "without": []}
            marked = "pytestmark" in head
            seconds(folder)
            for _ in range(options.rounds):
                sides["with"].append(seconds(folder))
                if not marked:
                    sides["without"].append(seconds(folder, "-p", "no:gapless"))
            both = {side: statistics.median(times) for side, times in sides.items() if times}
            without = both.get("without")
            ratio = f"{both['with'] / without:.2f}" if without else "–"
            rows.append([name, f"{both['with']:.2f}", f"{without:.2f}" if without else "–", ratio])
    table = _sheet.table(["suite", "seconds with the plugin", "without", "ratio"], rows)
    method = f"whole `pytest` processes, both sides in turn, {options.rounds} rounds, medians"
    text = _sheet.header("The pytest plugin", "python benchmarks/pytest_plugin.py --write", method) + table
    print(text)
    if options.write:
        _sheet.write("pytest_plugin", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
