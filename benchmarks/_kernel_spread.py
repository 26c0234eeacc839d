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

from gapless.analyze.estimate.spread import MIDDLE, SHORT, kind_of
from gapless.analyze.kernel_times.cards import reach

LENGTHS = ("short", "middle", "long")
FEWEST, ENOUGH = 15, 5
"""Rows that a GPU needs; GPUs from which on those of one length tell how GPUs differ, else those of all."""
_Z = NormalDist().inv_cdf(0.9)


def spreads(kept: Sequence[Row]) -> list[list[object]]:
    """For each kind and length: GPUs, the deviation within them, between them, and the spread."""
    errors: defaultdict[tuple[str, str], defaultdict[tuple[str, str], list[float]]]
    errors = defaultdict(lambda: defaultdict(list))
    for one, error in zip(kept, log_errors(kept), strict=True):
        time = one.us * 1e3 * np.exp(error)
        length = LENGTHS[0 if time < SHORT else 1 if time < MIDDLE else 2]
        kind, _ = kind_of(one.work, GPUS[one.gpu])
        if not (kind.startswith("products") and reach(GPUS[one.gpu]).unsteady):  # those err on their own
            errors[kind, length][one.gpu, one.source].append(float(error))
    table: list[list[object]] = []
    for kind in sorted({kind for kind, _ in errors}):
        by = {length: _known(errors[kind, length]) for length in LENGTHS}
        everywhere: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        for groups in by.values():
            for key, group in groups.items():
                everywhere[key] += list(group)
        for length, groups in by.items():
            if groups:
                within = np.sqrt(np.mean([_within(group) ** 2 for group in groups.values()]))
                between = _between(groups if len(groups) >= ENOUGH else _known(everywhere))
                told = f"{np.hypot(within, between):.2f}"
                table.append([kind, length, len(groups), f"{within:.2f}", f"{between:.2f}", told])
    return table


def _known(groups: dict[tuple[str, str], list[float]]) -> dict[tuple[str, str], np.ndarray]:
    return {key: np.array(group) for key, group in groups.items() if len(group) >= FEWEST}


def _within(errors: np.ndarray) -> float:
    return float(np.quantile(np.abs(errors - np.median(errors)), 0.8)) / _Z


def _between(groups: dict[tuple[str, str], np.ndarray]) -> float:
    """Of the next GPU's median, as a normal distribution with the same four fifths."""
    medians = [float(np.median(group)) for group in groups.values()]
    count = len(medians)
    if count < 2:
        return float("nan")
    wider = t.ppf(0.9, count - 1) / _Z * np.sqrt(1 + 1 / count)
    return float(np.std(medians, ddof=1) * wider)
