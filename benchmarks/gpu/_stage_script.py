"""The script of an experiment in stages: its steps measured in turn, and the gain of each fix predicted."""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType
from typing import Any

import _experiment
import _sheet
import _stages
import torch
from _experiment import Results

ROUNDS, BLOCK = _experiment.choose((15, 20), (5, 6))
"""Blocks of each stage, and steps of a block."""


def stage_script(doc: str | None, file: str, module: ModuleType, waits: list[float]) -> _experiment.Script:
    """Return the script of the experiment `module`; `waits` are expected of its stages on the emulated
    device."""

    def part(name: str, emulated: bool) -> Any:
        rounds, block = (1, 1) if emulated else (ROUNDS, BLOCK)
        torch.set_num_threads(8)
        rows = _stages.measure_experiment(module, module.TINY if emulated else module.FULL, rounds, block)
        return {
            "table": _stages.table(rows),
            "stages": [
                {"name": row.name, "emulated": row.emulated, "step": row.step.median, "low": row.step.low,
                 "high": row.step.high, "predicted": row.predicted, "light": row.light, "heavy": row.heavy}
                for row in rows
            ],
        }  # fmt: skip

    def sheet(results: Results) -> tuple[str, list[str]]:
        if "stages" not in results:
            return "", []
        stages = results["stages"]["stages"]
        text = f"{results['stages']['table']}\n## Predicted and measured gains\n\n{price_table(stages)}"
        return text, problems(stages, waits)

    size = module.TINY if _experiment.SELF_CHECK else module.FULL
    method = _stages.method(ROUNDS, BLOCK, str(size))
    title = (module.__doc__ or "").splitlines()[0].rstrip(".")
    return _experiment.Script(doc, file, title, method, part, sheet, alone=["stages"], seconds=150)


def problems(stages: list[dict[str, Any]], waits: list[float]) -> list[str]:
    """Return what is wrong: waits other than expected, a stage without times, a fix without a price."""
    emulated = [stage["emulated"] for stage in stages]
    wrong = [f"waits {emulated}, and not {waits}"] if emulated != waits else []
    wrong += [f"no times of {stage['name']}" for stage in stages if min(stage["step"], stage["light"]) <= 0]
    return wrong + [
        f"no price of {stage['name']}"
        for stage, following in pairwise(stages)
        if stage["emulated"] > following["emulated"] and stage["predicted"] <= 0
    ]


def price_table(stages: list[dict[str, Any]]) -> str:
    """Return the predicted and the measured gain from each stage to the next that lacks some of its waits."""
    rows: list[list[object]] = []
    for before, after in pairwise(stages):
        if before["predicted"] < 0:
            continue
        gained = before["step"] - after["step"]
        least, most = before["low"] - after["high"], before["high"] - after["low"]
        apart = 100 * (before["predicted"] - gained) / before["step"]
        inside = "yes" if least <= before["predicted"] <= most else f"{apart:+.1f} % of a step"
        times = (f"{1e3 * value:.3f}" for value in (before["step"], before["predicted"], gained))
        rows.append([before["name"], after["name"], *times, f"{1e3 * least:.3f} to {1e3 * most:.3f}", inside])
    columns = ["stage", "next", "ms a step", "predicted gain, ms", "measured, ms", "between", "inside"]
    return _sheet.table(columns, rows)
