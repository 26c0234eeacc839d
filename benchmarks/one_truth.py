"""Check many scripts, and look in each report for numbers that are told twice, differently.

    python benchmarks/one_truth.py [--scripts PATH,...] [--budget SECONDS] [--keep FILE] [--write]

Without scripts: those of the field tests, of the examples and of the stacks. What is kept in a file is not
run again, so that an interrupted run can be continued.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from _sheet import header, main, table

PROJECT = Path(__file__).resolve().parents[1]
STEPS = "5"
"""Steady steps of each script: fewer than by default, since a number is told as often in a short run."""
FOLDERS = ("tests/field/scripts", "examples/screens", "benchmarks/stacks")
sys.path.insert(0, str(PROJECT / "tests"))

import one_truth

import gapless


def checked(script: Path, budget: float) -> tuple[str, list[str]]:
    """The verdict on a script, and what its report says twice; without a report, why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "run.gapless.json"
        words = [sys.executable, "-m", "gapless", "check", "-q", "--steps", STEPS, "--loader-budget", "2"]
        words += ["--world-size", "2"] if "LOCAL_RANK" in script.read_text() else []
        words += ["-o", str(saved)]
        try:
            subprocess.run(
                [*words, str(script)], cwd=script.parent, capture_output=True, timeout=budget, check=False
            )
        except subprocess.TimeoutExpired:
            return f"no report in {budget:g} s", []
        if not saved.exists():
            return "no report", []
        report = gapless.report(gapless.load(saved))
    return report.sentence, one_truth.contradictions(report)


def sheet(given: argparse.Namespace) -> str:
    scripts = [Path(one) for one in given.scripts.split(",") if one] or [
        path for folder in FOLDERS for path in sorted((PROJECT / folder).glob("[!_]*.py"))
    ]
    kept = Path(given.keep) if given.keep else None
    results = json.loads(kept.read_text()) if kept is not None and kept.exists() else {}
    for script in scripts:
        if script.name not in results:
            results[script.name] = checked(script.resolve(), given.budget)
            sentence, found = results[script.name]
            print(f"{script.name}: {sentence}", *(f"  {one}" for one in found), sep="\n", flush=True)
            if kept is not None:
                kept.write_text(json.dumps(results))
    rows: list[list[object]] = [
        [name, sentence, "; ".join(found) or "none"] for name, (sentence, found) in results.items()
    ]
    method = (
        "each script is checked with `gapless check`; `tests/one_truth.py` gathers every number of its "
        "report with the name of what it is, from text and from data, and compares those of one name"
    )
    title = "One truth per report: numbers that are told twice"
    return header(title, "python benchmarks/one_truth.py --write", method) + table(
        ["script", "verdict", "told twice, differently"], rows
    )


if __name__ == "__main__":
    main(
        "one_truth",
        __doc__ or "",
        sheet,
        scripts={"default": "", "help": "paths, parted by commas"},
        keep={"default": "", "help": "a file with the results of an interrupted run"},
        budget={"default": 120.0, "type": float, "help": "seconds for each"},
    )
