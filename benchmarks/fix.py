"""Fix many scripts, prove the fixes, and count what is left.

    python benchmarks/fix.py [--scripts PATH,...] [--seconds N] [--keep FILE] [--write]

Without scripts: those of the field tests and of the examples that run on one GPU. What is kept in a file is
not run again, so that an interrupted run can be continued.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from _sheet import facts, header, main, table

from gapless.commands._again import Rerun
from gapless.fixes.planning import choose_fixes, plan_fixes
from gapless.fixes.proof import ProofOptions, ScriptProject
from gapless.fixes.trial import FixTrial
from gapless.model.fix import Fix

PROJECT = Path(__file__).resolve().parents[1]
FOLDERS = (
    "tests/field/scripts",
    "examples/metrics",
    "examples/profiling",
    "examples/screens",
    "examples/segmentation",
)
SEVERAL_GPUS = ("LOCAL_RANK", "cuda:1")
"""What scripts say that need more than one GPU, or a launcher."""
QUICK = ("--no-prices", "--no-compile-pass", "--quiet", "--loader-budget", "1")
NO_SESSION = "no session"


def fix_script(script: Path, seconds: float) -> dict[str, Any]:
    """Return what the fixes of a copy of a script's folder do."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / script.parent.name
        shutil.copytree(script.parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
        path = copy / script.name
        run = Rerun((), (str(path),), folder=str(copy))((str(path),), quiet=QUICK)
        if run.session is None:
            return {"error": run.why or NO_SESSION}
        fixes = plan_fixes(run.session, copy, str(path))
        chosen, late = choose_fixes(fix for fix in fixes if fix.level != "suggested")
        trial = FixTrial(ScriptProject(copy, script.name), ProofOptions(seconds=seconds))
        if chosen:
            trial.run(chosen)
        return describe(fixes, trial, late)


def describe(fixes: tuple[Fix, ...], trial: FixTrial, late: list[Fix]) -> dict[str, Any]:
    """Return the numbers of one script."""
    kept = {(fix.code, fix.line.line, fix.edits) for fix in trial.kept}
    left: defaultdict[str, float] = defaultdict(float)
    for fix in fixes:
        if (fix.code, fix.line.line, fix.edits) in kept:
            continue
        failed = next((other for other in trial.failed if other.edits == fix.edits), None)
        reason = fix.refusal or ("not proved" if failed is not None else f"only {fix.level}")
        left[f"{fix.code}: {reason}"] += fix.waits
    proof = trial.proof
    return {
        "before": sum(fix.waits for fix in fixes),
        "gone": sum(fix.waits for fix in trial.kept),
        "outcome": proof.outcome if proof is not None else "",
        "removed": {
            f"{code} {level}": sum(fix.waits for fix in trial.kept if (fix.code, fix.level) == (code, level))
            for code, level in sorted({(fix.code, fix.level) for fix in trial.kept})
        },
        "left": dict(left),
        "failed": [
            f"{fix.code}:{fix.line.line} {fix.proof.reason if fix.proof else ''}" for fix in trial.failed
        ],
        "late": len(late),
    }


def sheet(arguments: argparse.Namespace) -> str:
    scripts = [Path(path) for path in arguments.scripts.split(",") if path] or [
        path
        for folder in FOLDERS
        for path in sorted((PROJECT / folder).glob("[!_]*.py"))
        if path.name != "common.py" and not any(word in path.read_text() for word in SEVERAL_GPUS)
    ]
    kept = Path(arguments.keep) if arguments.keep else None
    results = json.loads(kept.read_text()) if kept is not None and kept.exists() else {}
    for script in scripts:
        name = f"{script.parent.name}/{script.name}"
        if name not in results:
            results[name] = {**fix_script(script.resolve(), arguments.seconds), "measured": facts()}
            print(name, json.dumps(results[name]), flush=True)
            if kept is not None:
                kept.write_text(json.dumps(results))
    return summarize(results)


def summarize(results: dict[str, dict[str, Any]]) -> str:
    """Return the sheet's text."""
    runs = {name: result for name, result in results.items() if "error" not in result}
    waiting = {name: result for name, result in runs.items() if result["before"]}
    before, gone = (sum(result[key] for result in waiting.values()) for key in ("before", "gone"))
    rows: list[list[object]] = [
        [
            name,
            *(f"{each[key]:.3g}" for key in ("before", "gone")),
            each["outcome"] or "–",
            "; ".join(each["failed"]),
        ]
        for name, each in waiting.items()
    ]
    removed: Counter[str] = Counter()
    left: Counter[str] = Counter()
    for result in runs.values():
        removed.update(result["removed"])
        left.update(result["left"])
    share = gone / before if before else 0.0
    return "\n".join(
        [
            header(
                "Fixes, written and proved",
                "python benchmarks/fix.py --write",
                METHOD,
                [each["measured"] for each in results.values()],
            ),
            f"{len(waiting)} of {len(runs)} scripts sync in their steps, {before:.4g} times per step; proved "
            f"fixes remove {gone:.4g} ({share:.0%}). {len(results) - len(runs)} scripts left no session.\n",
            table(["script", "syncs per step", "removed", "proof", "not proved"], rows),
            "\nSyncs per step that fixes remove, by rule and level:\n",
            table(
                ["rule, level", "syncs per step"],
                [[name, f"{value:.3g}"] for name, value in removed.most_common()],
            ),
            "\nSyncs per step that are left, by reason:\n",
            table(
                ["reason", "syncs per step"],
                [[name, f"{value:.3g}"] for name, value in left.most_common() if value >= 0.05],
            ),
        ]
    )


METHOD = (
    "Each script is checked as `gapless check` does it, its fixes up to level `tried` are planned, and "
    "copies of its folder with and without them are run and compared: parameters after each step, printed "
    "lines, races, syncs by line. Fixes that fail their proof are left out."
)

if __name__ == "__main__":
    main(
        "fix",
        __doc__ or "",
        sheet,
        scripts={"default": ""},
        seconds={"type": float, "default": 8.0},
        keep={"default": ""},
    )
