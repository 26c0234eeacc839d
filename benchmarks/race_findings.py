"""What looking for races finds in scripts that have none: every use is booked, from the beginning on.

The field scripts of the tests and the examples; with `--stacks` those of `stacks/`, too, whose packages are
installed. How each went is kept, and the sheet is written of all that are there, so it can be run in pieces:
`python benchmarks/race_findings.py gan ppo`.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import _sheet

ROOT = _sheet.HERE.parent
RESULTS = ROOT / "build" / "race_findings"
TIMEOUT = 240
SMALL = {
    "segmentation": ["--size", "16", "--batch", "4", "--workers", "0"],
    "metrics": ["--size", "32", "--log-every", "3", "--batch", "4", "--workers", "0"],
}
DEVICES = {
    "ddp": ["--world-size", "2"],
    "fsdp2": ["--world-size", "2"],
    "multi_gpu_model_parallel": ["--devices", "2"],
}
NO_SCRIPTS = ("common", "_")


def run_with_all_uses() -> None:
    """Run `gapless` with this process's arguments, recording every use of a tensor."""
    from gapless.emulation.races.checker import Checker

    original = Checker.__init__

    def full(self: Checker, where: dict[int, int]) -> None:
        original(self, where)
        self.full = True

    Checker.__init__ = full  # type: ignore[method-assign]
    sys.argv = ["gapless", *sys.argv[2:]]
    runpy.run_module("gapless", run_name="__main__")


def scripts(stacks: bool) -> list[Path]:
    """Return the scripts to run, in order."""
    places = [("tests/field/scripts", "*.py"), ("examples", "*/*.py")]
    places += [("benchmarks/stacks", "*.py")] if stacks else []
    paths = [path for folder, pattern in places for path in sorted((ROOT / folder).glob(pattern))]
    return [path for path in paths if not path.stem.startswith(NO_SCRIPTS) and path.parent.name != "models"]


def run(path: Path) -> list[str] | None:
    """Return how the script ended, and its races; None if a package is missing."""
    options = DEVICES.get(path.stem, []) if path.parent.name == "scripts" else []
    words = [
        "check",
        "-q",
        "--no-loader",
        "-f",
        "json",
        *options,
        str(path),
        *SMALL.get(path.parent.name, []),
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, __file__, "--book", *words],
                cwd=folder, env=env, capture_output=True, text=True, timeout=TIMEOUT,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return [f"not done after {TIMEOUT} s", "-"]
    if "ModuleNotFoundError" in done.stderr or "ImportError" in done.stderr:
        return None
    begin = done.stdout.find('{"format"')
    if begin < 0:
        return [f"no report (exit status {done.returncode})", "-"]
    report, _ = json.JSONDecoder().raw_decode(done.stdout, begin)
    races = [finding for finding in report["findings"] if finding["code"].startswith("GAP8")]
    races_text = (
        "; ".join(f"{finding['code']} line {finding.get('line', {}).get('line', '?')}" for finding in races)
        or "none"
    )
    return [report["ending"]["how"], races_text]


def main() -> None:
    if sys.argv[1:2] == ["--book"]:
        run_with_all_uses()
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="beginnings of the scripts' names; all of them else")
    parser.add_argument("--stacks", action="store_true")
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for path in scripts(options.stacks):
        if options.names and not path.stem.startswith(tuple(options.names)):
            continue
        name = path.relative_to(ROOT).as_posix()
        outcome = run(path)
        print(name, outcome, file=sys.stderr)
        if outcome is not None:
            row = [name, *outcome, _sheet.commit()]
            (RESULTS / f"{name.replace('/', '+')}.json").write_text(json.dumps(row))
    text = _sheet.header(
        "Races found in scripts that have none",
        "python benchmarks/race_findings.py",
        "each script under `gapless check`, with every use of every tensor booked from the beginning on; "
        "findings of GAP801 to GAP806, each of which was read",
    )
    rows = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    text += _sheet.table(["script", "ended", "races", "commit"], rows)
    print(_sheet.write("race_findings", text).read_text())


if __name__ == "__main__":
    main()
