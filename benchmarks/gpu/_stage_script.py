"""The script of an experiment in stages: its steps measured in turn, and the gain of each fix predicted."""

from __future__ import annotations

from itertools import pairwise, zip_longest
from types import ModuleType
from typing import Any

import _experiment
import _sheet
import _stages
from _experiment import Results

ROUNDS, BLOCK = _experiment.choose((15, 20), (5, 6))
"""Blocks of each stage, and steps of a block."""


def stage_script(doc: str | None, file: str, module: ModuleType, waits: list[float]) -> _experiment.Script:
    """Return the script of the experiment `module`; `waits` are expected of its stages on the emulated
    device."""

    def part(name: str, emulated: bool) -> Any:
        size = module.TINY if emulated else module.FULL
        if name.startswith("predicted"):
            return emulate(module, module.TINY if emulated else module.SMALL)
        rounds, block = (1, 1) if emulated else (ROUNDS, BLOCK)
        return [as_data(row) for row in _stages.measure(module.steps(size), rounds, block)]

    def sheet(results: Results) -> tuple[str, list[str]]:
        stages = results.get("stages", [])
        said = results.get("predicted stages", [])
        if not stages:
            return "", []
        text = f"{table(stages, said)}\n## Predicted and measured gains\n\n{price_table(stages)}"
        return text, problems(stages, said, waits)

    size = module.TINY if _experiment.SELF_CHECK else module.FULL
    method = (
        f"{size}; inputs made beforehand, on the device; {ROUNDS * BLOCK} steps of each stage without a "
        f"profiler, in blocks of {BLOCK}, stages in turn, medians of the blocks and what holds the median "
        "with 95 %, the device synchronized at both ends of a block; predicted syncs: on the emulated "
        f"device, {module.SMALL}; predicted gain: replay of the profile without the waits whose rules the "
        "next stage lacks; profiles without and with Python stacks"
    )
    title = (module.__doc__ or "").splitlines()[0].rstrip(".")
    return _experiment.Script(
        doc, file, title, method, part, sheet, ["predicted stages"], ["stages"], seconds=150
    )


def emulate(module: ModuleType, size: object) -> list[float]:
    """Return the syncs of a step of each stage on the emulated device."""
    steps = module.steps(size)
    rows = [_stages.Measured(name) for name in steps("cpu")]
    for row in rows:
        _stages.run_emulated(steps, row)
    return [row.emulated for row in rows]


def as_data(row: _stages.Measured) -> Results:
    """Return what the sheet needs of a measured stage; times in seconds."""
    profile = row.profile
    return {
        "name": row.name,
        "debug": row.debug,
        "step": [row.step.median, row.step.low, row.step.high],
        "ratio": [row.ratio.median, row.ratio.low, row.ratio.high],
        "profile": [row.light, row.heavy],
        "idle": profile.idle / max(profile.steps.total, 1) if profile is not None else None,
        "predicted": row.predicted,
    }


def table(stages: list[Results], said: list[float]) -> str:
    """Return the stages as a Markdown table."""
    rows: list[list[object]] = []
    for stage, syncs in zip_longest(stages, said, fillvalue="–"):
        idle = "–" if stage["idle"] is None else f"{100 * stage['idle']:.1f} %"
        median, low, high = (1e3 * seconds for seconds in stage["step"])
        ratio = "{:.3f} ({:.3f} to {:.3f})".format(*stage["ratio"])
        profiled = (f"{1e3 * seconds:.2f}" for seconds in stage["profile"])
        syncs = f"{syncs:g}" if isinstance(syncs, float) else syncs
        cells = [stage["name"], syncs, f"{stage['debug']:g}", idle, f"{median:.3f}"]
        rows.append([*cells, f"{low:.3f} to {high:.3f}", ratio, *profiled])
    columns = ["stage", "syncs a step, predicted", "by debug mode", "GPU idle", "ms a step", "between"]
    return _sheet.table([*columns, "× first, in turn", "ms in a profile", "with stacks"], rows)


def problems(stages: list[Results], said: list[float], waits: list[float]) -> list[str]:
    """Return what is wrong: syncs other than expected, a stage without times."""
    wrong = [f"waits {said}, and not {waits}"] if said != waits else []
    return wrong + [
        f"no times of {stage['name']}" for stage in stages if min(stage["step"][0], *stage["profile"]) <= 0
    ]


def price_table(stages: list[Results]) -> str:
    """Return the predicted and the measured gain from each stage to the next that lacks some of its waits."""
    rows: list[list[object]] = []
    for before, after in pairwise(stages):
        if before["predicted"] < 0:
            continue
        (step, low, high), (next_step, next_low, next_high) = before["step"], after["step"]
        gained, least, most = step - next_step, low - next_high, high - next_low
        apart = 100 * (before["predicted"] - gained) / step
        inside = "yes" if least <= before["predicted"] <= most else f"{apart:+.1f} % of a step"
        times = (f"{1e3 * value:.3f}" for value in (step, before["predicted"], gained))
        rows.append([before["name"], after["name"], *times, f"{1e3 * least:.3f} to {1e3 * most:.3f}", inside])
    columns = ["stage", "next", "ms a step", "predicted gain, ms", "measured, ms", "between", "inside"]
    return _sheet.table(columns, rows)
