"""What the scripts of an experiment share: measure it at full size on a GPU, or check the script."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from itertools import pairwise
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import _sheet
import _stages
import torch


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The options of every script here."""
    made = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    made.add_argument("--self-check", action="store_true", help="run the script small, without a GPU")
    return made


def no_gpu() -> int:
    """The exit status where nothing can be measured, said."""
    print("no GPU here: nothing is measured (--self-check runs without one)", file=sys.stderr)
    return 2


def run(doc: str | None, module: ModuleType, name: str, waits: list[float]) -> int:
    """Measure the experiment `module`; `waits` are those of its stages that the self-check expects."""
    options_of = parser(doc)
    options_of.add_argument("--rounds", type=int, default=15)
    options_of.add_argument("--block", type=int, default=20)
    options = options_of.parse_args()
    warnings.simplefilter("ignore")
    if options.self_check:
        return checked(_stages.measured(module, module.TINY, 1, 1), waits)
    if not torch.cuda.is_available():
        return no_gpu()
    rows = _stages.measured(module, module.FULL, options.rounds, options.block)
    text = module.sheet(rows, module.FULL, options.rounds, options.block, f"python benchmarks/gpu/{name}.py")
    print(text)
    _sheet.write(name, text, HERE)
    keep(name, rows)
    return 0


def checked(rows: list[_stages.Measured], waits: list[float]) -> int:
    """Whether every stage ran and was looked at in every way, and waited as often as it should."""
    print(_stages.table(rows))
    seen = [row.emulated for row in rows]
    whole = all(row.step.median > 0 and row.light > 0 and row.heavy > 0 for row in rows)
    priced = all(row.predicted > 0 for row, following in pairwise(rows) if row.emulated > following.emulated)
    if seen != waits:
        print(f"waits {seen}, and not {waits}", file=sys.stderr)
    return 0 if seen == waits and whole and priced else 1


def keep(name: str, rows: list[_stages.Measured]) -> None:
    """The figures that prices.py sets side by side."""
    stages = [
        {"name": row.name, "step": row.step.median, "low": row.step.low, "high": row.step.high,
         "predicted": row.predicted, "idle": row.profile.idle if row.profile else 0}
        for row in rows
    ]  # fmt: skip
    (HERE / f"{name}.json").write_text(json.dumps(stages, indent=1) + "\n")
