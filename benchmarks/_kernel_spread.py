"""How far off estimates of kernels may be: the rows of `gapless.analyze.estimate.spread.SPREADS`, by a rule.

A GPU's kernels of one kind are all somewhat faster or slower than the model says, and each of them is so
besides. The first is a deviation between GPUs, of which there are few: for the next one its sample has
Student's distribution. The second is a deviation within a GPU. Both together are the spread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from _kernel_fit import log_errors
from _kernel_tables import GPUS, Row
from scipy.stats import t

from gapless.analyze.estimate.spread import MAX_MIDDLE_TIME, MAX_SHORT_TIME, spread_kind
from gapless.analyze.kernel_times.cards import reach

LENGTHS = ("short", "middle", "long")
MIN_ROWS, MIN_GPUS = 15, 5
"""Rows needed of a GPU; GPUs of one length needed to tell how GPUs differ (below, all lengths are used)."""
_Z = NormalDist().inv_cdf(0.9)


def spreads(kept: Sequence[Row]) -> list[list[object]]:
    """Return for each kind and length the number of GPUs, the deviations within and between them, and the
    spread."""
    errors: defaultdict[tuple[str, str], defaultdict[tuple[str, str], list[float]]]
    errors = defaultdict(lambda: defaultdict(list))
    for row, error in zip(kept, log_errors(kept), strict=True):
        time = row.us * 1e3 * np.exp(error)
        length = LENGTHS[0 if time < MAX_SHORT_TIME else 1 if time < MAX_MIDDLE_TIME else 2]
        kind, _ = spread_kind(row.work, GPUS[row.gpu])
        if not (kind.startswith("products") and reach(GPUS[row.gpu]).unsteady):  # those err on their own
            errors[kind, length][row.gpu, row.source].append(float(error))
    table: list[list[object]] = []
    for kind in sorted({kind for kind, _ in errors}):
        by = {length: _large_groups(errors[kind, length]) for length in LENGTHS}
        everywhere: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        for groups in by.values():
            for key, group in groups.items():
                everywhere[key] += list(group)
        for length, groups in by.items():
            if groups:
                within = np.sqrt(np.mean([_deviation_within(group) ** 2 for group in groups.values()]))
                between = _deviation_between(groups if len(groups) >= MIN_GPUS else _large_groups(everywhere))
                spread = f"{np.hypot(within, between):.2f}"
                table.append([kind, length, len(groups), f"{within:.2f}", f"{between:.2f}", spread])
    return table


def _large_groups(groups: dict[tuple[str, str], list[float]]) -> dict[tuple[str, str], np.ndarray]:
    return {key: np.array(group) for key, group in groups.items() if len(group) >= MIN_ROWS}


def _deviation_within(errors: np.ndarray) -> float:
    return float(np.quantile(np.abs(errors - np.median(errors)), 0.8)) / _Z


def _deviation_between(groups: dict[tuple[str, str], np.ndarray]) -> float:
    """Return the deviation of the next GPU's median: of the normal distribution with the same 80%
    interval."""
    medians = [float(np.median(group)) for group in groups.values()]
    count = len(medians)
    if count < 2:
        return float("nan")
    wider = t.ppf(0.9, count - 1) / _Z * np.sqrt(1 + 1 / count)
    return float(np.std(medians, ddof=1) * wider)
