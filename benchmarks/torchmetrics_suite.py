"""TorchMetrics' own tests with its metrics and with ours in their place, and a fit in Lightning."""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import _sheet
from _torchmetrics_differences import INTENDED

HERE = "gapless.metrics"
THEIRS = "torchmetrics"
FOLDERS = (
    "bases",
    "wrappers",
    "classification",
    "image",
    "regression",
    "retrieval",
    "segmentation",
    "text",
)
HELPERS = ("_helpers", "conftest.py", "__init__.py")
MAX_SECONDS = 3 * 3600


class Outcome(NamedTuple):
    """States of tests by name: with our metrics, and with TorchMetrics' where ours did not pass."""

    ours: dict[str, str]
    theirs: dict[str, str]

    def count(self, *states: str) -> int:
        return sum(state in states for state in self.ours.values())

    def different(self) -> list[str]:
        failed = [name for name, state in self.ours.items() if state == "failed"]
        return [name for name in failed if self.theirs.get(name) == "passed"]


def home_of(module: str, name: str) -> str:
    """Return our module with `name` in place of TorchMetrics' `module`; `module` itself if there is none."""
    ours = HERE + module.removeprefix(THEIRS)
    try:
        return ours if hasattr(importlib.import_module(ours), name) else module
    except ImportError:
        return module


class Replacing(ast.NodeTransformer):
    """Imports from gapless every name that it has."""

    def __init__(self) -> None:
        self.replaced = 0

    def visit_ImportFrom(self, node: ast.ImportFrom) -> list[ast.stmt]:
        module = node.module or ""
        if module.partition(".")[0] != THEIRS:
            return [node]
        statements = []
        for alias in node.names:
            home = home_of(module, alias.name)
            self.replaced += home != module
            statements.append(ast.copy_location(ast.ImportFrom(home, [alias], 0), node))
        return list(statements)


def prepare(suite: Path, into: Path, folder: str) -> list[str]:
    """Copy the tests of a folder into `into`, unchanged and with our metrics; return the files that use
    any."""
    chosen = []
    for name in (*HELPERS, folder):
        files = [suite / name] if name.endswith(".py") else sorted((suite / name).rglob("*.py"))
        for file in files:
            place = file.relative_to(suite)
            tree, replacing = ast.parse(file.read_text()), Replacing()
            changed = ast.unparse(replacing.visit(tree))
            for kind, text in (("theirs", file.read_text()), ("ours", changed)):
                at = into / kind / "unittests" / place
                at.parent.mkdir(parents=True, exist_ok=True)
                at.write_text(text)
            if replacing.replaced and file.name.startswith("test_"):
                chosen.append(str(Path("unittests") / place))
    return chosen


def run(into: Path, kind: str, files: list[str], options: list[str]) -> dict[str, str]:
    """Run `files` and return each test's state: ``"passed"``, ``"failed"`` or ``"skipped"``."""
    report = into / f"{kind}.xml"
    report.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--continue-on-collection-errors",
        "-o",
        f"cache_dir={into / 'pytest'}",
        f"--junitxml={report}",
    ]
    environment = {**os.environ, "PYTEST_REFERENCE_CACHE": str(into / "cache"), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*command, *options, *files],
        cwd=into / kind,
        env=environment,
        stdout=subprocess.DEVNULL,
        timeout=MAX_SECONDS,
    )
    states = {}
    for case in ElementTree.parse(report).iter("testcase") if report.exists() else ():
        kinds = {child.tag for child in case}
        state = "skipped" if "skipped" in kinds else "failed" if kinds & {"failure", "error"} else "passed"
        states[f"{case.get('classname')}::{case.get('name')}"] = state
    return states


def run_file(
    into: Path, file: str, options: list[str], kept: Path | None, until: float | None
) -> Outcome | None:
    """Run one file of tests, unless results are in `kept`.

    None if not kept and `until` (monotonic seconds) has passed.
    """
    runs: list[dict[str, str]] = []
    for kind in ("ours", "theirs"):
        at = kept / f"{kind}.{Path(file).parent.name}.{Path(file).stem}.json" if kept else None
        if at is not None and at.exists():
            runs.append(json.loads(at.read_text()))
            continue
        if kind == "theirs" and "failed" not in runs[0].values():
            break
        if until is not None and time.monotonic() > until:
            return None
        failed = [name for name, state in runs[0].items() if state == "failed"] if runs else []
        chosen = sorted({name.rpartition("::")[2].partition("[")[0] for name in failed})
        only = ["-k", " or ".join(chosen)] if chosen and not options else options
        runs.append(run(into, kind, [file], only))
        if kind == "theirs" and only != options and Outcome(*runs).different():
            runs[1] = run(into, kind, [file], options)  # tests draw their inputs one after the other
        if at is not None and runs[-1]:
            at.write_text(json.dumps(runs[-1]))
    return Outcome(runs[0], runs[1] if len(runs) > 1 else {})


def test_of(name: str) -> str:
    """Return the test's name without parameters and package."""
    return name.partition("[")[0].removeprefix("unittests.")


def reason(test: str) -> str:
    return next((why for begins, why in INTENDED.items() if test.startswith(begins)), "**not intended**")


FIT = """
import logging, sys, warnings
import torch, lightning, torchmetrics
import gapless.metrics
from gapless.metrics import *
warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

class Model(lightning.LightningModule):
    def __init__(self, library, collection):
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Linear(6, 4)
        self.accuracy, self.f1 = library.MulticlassAccuracy(4), library.MulticlassF1Score(4)
        self.scores = collection([library.MulticlassRecall(4), library.MulticlassAUROC(4)], prefix="val_")
    def training_step(self, batch, index):
        logits = self.net(batch[0])
        self.accuracy(logits, batch[1])
        self.log("accuracy", self.accuracy, on_step=True, on_epoch=True)
        self.f1.update(logits, batch[1])
        self.log("f1", self.f1, on_step=False, on_epoch=True)
        return torch.nn.functional.cross_entropy(logits, batch[1])
    def validation_step(self, batch, index):
        self.scores.update(self.net(batch[0]), batch[1])
        self.log_dict(self.scores)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

def fit(library, collection):
    model = Model(library, collection)
    torch.manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(64, 6), torch.randint(0, 4, (64,)))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = lightning.Trainer(max_epochs=3, logger=False, accelerator="cpu", **quiet)
    trainer.fit(model, loader, loader)
    return {name: float(value) for name, value in trainer.callback_metrics.items()}

ours = fit(gapless.metrics, gapless.metrics.MetricCollection)
theirs = fit(torchmetrics.classification, torchmetrics.MetricCollection)
assert ours.keys() == theirs.keys(), (ours, theirs)
assert all(abs(ours[name] - theirs[name]) < 1e-6 for name in ours), (ours, theirs)
print(", ".join(f"`{name}` {value:.4f}" for name, value in sorted(ours.items())))
"""


def run_fit() -> str:
    """Return what a fit logs with either library; CalledProcessError if they differ."""
    ran = subprocess.run([sys.executable, "-c", FIT], capture_output=True, text=True, check=True)
    return ran.stdout.strip().splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", type=Path, help="a checkout of TorchMetrics, of the installed version")
    parser.add_argument("--folders", nargs="*", default=FOLDERS, choices=FOLDERS)
    parser.add_argument("-k", dest="chosen", default="", help="only these tests, as pytest has it")
    parser.add_argument("--keep", type=Path, help="a folder for results by file, to go on from")
    parser.add_argument("--minutes", type=float, help="begin no file after so many")
    options = parser.parse_args()
    until = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    suite = options.suite / "tests" / "unittests"
    if not suite.is_dir():
        parser.error(f"{suite} is no folder: give a checkout of TorchMetrics {metadata.version(THEIRS)}")
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    rows: list[list[object]] = []
    differing: Counter[tuple[str, str]] = Counter()
    chosen = ["-k", options.chosen] if options.chosen else []
    for folder in options.folders:
        with tempfile.TemporaryDirectory() as scratch:
            files = prepare(suite, Path(scratch), folder)
            tried = [run_file(Path(scratch), file, chosen, options.keep, until) for file in files]
        outcomes = [outcome for outcome in tried if outcome is not None]
        different = [name for outcome in outcomes for name in outcome.different()]
        passed, failed, skipped = (
            sum(outcome.count(state) for outcome in outcomes) for state in ("passed", "failed", "skipped")
        )
        share = f"{len(outcomes)} of {len(files)}"
        rows.append([f"`{folder}`", share, passed, skipped, failed - len(different), len(different)])
        differing.update((test_of(name), reason(test_of(name))) for name in different)
    versions = f"torchmetrics {metadata.version(THEIRS)}, lightning {metadata.version('lightning')}"
    text = _sheet.header(
        "TorchMetrics' own tests",
        "python benchmarks/torchmetrics_suite.py CHECKOUT"
        + (f" -k '{options.chosen}'" if options.chosen else ""),
        f"on the CPU, {versions}; every name that is here in place of TorchMetrics' in a copy of its tests, "
        "files without such a name left out; what fails is run with TorchMetrics, too; tests of several "
        "processes need a pool, and both skip them",
    )
    columns = ["tests in", "files run", "pass", "skipped", "fail with both", "fail with gapless alone"]
    text += "\n" + _sheet.table(columns, rows)
    text += "\n## Where they differ\n\n"
    text += _sheet.table(
        ["test", "cases", "why"],
        [[f"`{test}`", count, why] for (test, why), count in sorted(differing.items())],
    )
    text += "\n## A fit in Lightning\n\n"
    text += f"Logged by both, metrics and a collection, after three epochs: {run_fit()}.\n"
    print(_sheet.write("torchmetrics_suite", text).read_text())


if __name__ == "__main__":
    main()
