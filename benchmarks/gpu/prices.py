"""Predicted prices beside measured gains: how far the replay of a stage's profile is off the next stage.

    python benchmarks/gpu/prices.py                 # after metrics.py and loss.py: writes prices.md
    python benchmarks/gpu/prices.py --self-check    # anywhere: with figures made up for it

For each stage whose waits the next one lacks: the gain that the replay of its profile predicts, the gain
measured without a profiler, and whether the prediction lies between what the medians' intervals allow.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from typing import Any

import _experiment
import _sheet

Stage = dict[str, Any]
EXPERIMENTS = ("metrics", "loss")
_MADE_UP: list[Stage] = [
    {"name": "waits", "step": 0.012, "low": 0.0119, "high": 0.0121, "predicted": 0.002},
    {"name": "does not", "step": 0.010, "low": 0.0099, "high": 0.0101, "predicted": -1.0},
    {"name": "does something else", "step": 0.011, "low": 0.0109, "high": 0.0111, "predicted": -1.0},
]


def row(experiment: str, before: Stage, after: Stage) -> list[object]:
    """Return the predicted and the measured gain from one stage to the next."""
    gained = before["step"] - after["step"]
    least, most = before["low"] - after["high"], before["high"] - after["low"]
    apart = before["predicted"] - gained
    return [
        experiment,
        before["name"],
        after["name"],
        f"{1e3 * before['step']:.3f}",
        f"{1e3 * before['predicted']:.3f}",
        f"{1e3 * gained:.3f}",
        f"{1e3 * least:.3f} to {1e3 * most:.3f}",
        "yes" if least <= before["predicted"] <= most else f"{100 * apart / before['step']:+.1f} % of a step",
    ]


def rows(experiment: str, stages: list[Stage]) -> list[list[object]]:
    return [row(experiment, before, after) for before, after in pairwise(stages) if before["predicted"] >= 0]


def table(price_rows: list[list[object]]) -> str:
    columns = ["experiment", "stage", "next", "ms a step", "predicted gain, ms", "measured, ms", "between"]
    return _sheet.table([*columns, "inside"], price_rows)


def main() -> int:
    options = _experiment.parser(__doc__).parse_args()
    if options.self_check:
        price_rows = rows("made up", _MADE_UP)
        print(_experiment.EMULATED + table(price_rows))
        return 0 if [cells[-1] for cells in price_rows] == ["yes"] else 1
    files = {name: _experiment.HERE / f"{name}.json" for name in EXPERIMENTS}
    missing = [f"{name}.py" for name, path in files.items() if not path.exists()]
    if missing:
        print(f"measure first, on a GPU: {', '.join(missing)}", file=sys.stderr)
        return 2
    price_rows = [cells for name, path in files.items() for cells in rows(name, json.loads(path.read_text()))]
    method = (
        "steps and gains as metrics.py and loss.py measured them, without a profiler; predicted: the replay "
        "of the stage's profile without the waits whose rules the next stage lacks"
    )
    print(_experiment.keep("prices", "Predicted and measured prices", method, table(price_rows), False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
