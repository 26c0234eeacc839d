"""Check many scripts, and look in each report for numbers that are told twice, differently.

    python benchmarks/one_truth.py [--scripts PATH,...] [--budget SECONDS] [--keep FILE] [--write]

Without scripts: those of the field tests, of the examples and of the stacks. What is kept in a file is not
run again, so that an interrupted run can be continued.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from _sheet import header, main, table

PROJECT = Path(__file__).resolve().parents[1]
STEPS = "5"
"""Steady steps per script; fewer than the default, as a short run repeats its numbers as often."""
MANY_NUMBERS = ("--memory", "--gpu", "a100,l4", "--price", "a100=1.8,l4=0.8")
"""Options that make a report state as many numbers as it can."""
NO_REPORT = "no report"
INTERRUPT_SECONDS = 60.0
"""Seconds within which an interrupted check writes its report."""
FOLDERS = ("tests/field/scripts", "examples/screens", "benchmarks/stacks")
sys.path.insert(0, str(PROJECT / "tests"))

import consistency

import gapless


def check(script: Path, budget: float) -> tuple[str, list[str]]:
    """Return the verdict on a script and the contradictions in its report; or why there is no report."""
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "run.gapless.json"
        words = [sys.executable, "-m", "gapless", "check", "-q", "--steps", STEPS, "--loader-budget", "2"]
        words += ["--no-tries", *MANY_NUMBERS]
        text = script.read_text()
        words += ["--world-size", "2"] if "LOCAL_RANK" in text else []
        words += ["--devices", "2"] if "cuda:1" in text else []
        words += ["-o", str(saved), str(script)]
        process = subprocess.Popen(
            words, cwd=script.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            process.wait(budget)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # what was seen until then is a report, too
            try:
                process.wait(INTERRUPT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if not saved.exists():
            return f"{NO_REPORT} in {budget:g} s", []
        report = gapless.report(gapless.load(saved))
    return report.sentence, consistency.contradictions(report)


def sheet(arguments: argparse.Namespace) -> str:
    scripts = [Path(path) for path in arguments.scripts.split(",") if path] or [
        path for folder in FOLDERS for path in sorted((PROJECT / folder).glob("[!_]*.py"))
    ]
    kept = Path(arguments.keep) if arguments.keep else None
    results = json.loads(kept.read_text()) if kept is not None and kept.exists() else {}
    for script in scripts:
        if script.name not in results:
            results[script.name] = check(script.resolve(), arguments.budget)
            sentence, differences = results[script.name]
            print(f"{script.name}: {sentence}", *(f"  {each}" for each in differences), sep="\n", flush=True)
            if kept is not None:
                kept.write_text(json.dumps(results))
    reports = {name: result for name, result in results.items() if not result[0].startswith(NO_REPORT)}
    rows: list[list[object]] = [
        [name, sentence, "; ".join(differences) or "none"]
        for name, (sentence, differences) in reports.items()
    ]
    method = (
        f"each script is checked with `gapless check {' '.join(MANY_NUMBERS)}`; `tests/consistency.py` "
        "gathers every number of its report with the name of what it is, from text, JSON and data, and "
        "compares those of one name, among them who limits a step and how much of it the GPU works"
    )
    title = "One truth per report: numbers that are told twice"
    differing = sum(bool(differences) for _, differences in reports.values())
    summary = f"{len(reports)} reports, {differing} of them with a number that is told twice, differently"
    missing = ", ".join(name for name in results if name not in reports)
    summary += f"; no report of {missing} (libraries that are not installed, or time)" if missing else ""
    return (
        header(title, "python benchmarks/one_truth.py --write", method)
        + f"{summary}.\n\n"
        + table(["script", "verdict", "told twice, differently"], rows)
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
