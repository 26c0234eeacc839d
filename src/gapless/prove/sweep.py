"""Sweep times over the values of one keyword of the inputs, and find where one side overtakes the other."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from itertools import pairwise

from gapless.errors import UsageError
from gapless.model.proof import Crossing, Sweep, SweepRow


def parse_sweep_option(text: str) -> tuple[str, tuple[float | str, ...]]:
    """Parse ``density=0.001,0.01`` into the keyword and its values, numbers where possible.

    Raises:
        UsageError: it does not have that form.
    """
    key, equals, values = text.partition("=")
    words = [word.strip() for word in values.split(",") if word.strip()]
    if not equals or not key.strip().isidentifier() or len(words) < 2:
        raise UsageError(
            f"--sweep {text}: give a keyword of the inputs and at least two values: density=0.01,0.1"
        )
    return key.strip(), tuple(_parse_value(word) for word in words)


def _parse_value(word: str) -> float | str:
    try:
        value = ast.literal_eval(word)
    except (SyntaxError, ValueError):
        return word
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else word


def make_sweep(key: str, rows: Sequence[SweepRow]) -> Sweep:
    """Return the rows sorted by value, and where the faster side changes."""
    numeric = all(isinstance(row.value, (int, float)) for row in rows)
    ordered = sorted(rows, key=lambda row: row.value) if numeric else list(rows)
    return Sweep(key=key, rows=tuple(ordered), crossings=find_crossings(ordered) if numeric else ())


def find_crossings(rows: Sequence[SweepRow]) -> tuple[Crossing, ...]:
    """Return where the faster side changes, between neighbours of which each has a significant winner.

    Rows without one are skipped. The place is where the logarithm of the ratio, a straight line over the
    logarithm of the value (over the value itself if one is not positive), is zero.
    """
    sure = [row for row in rows if row.time.faster != "neither"]
    crossings_found = []
    for left, right in pairwise(sure):
        if left.time.faster == right.time.faster:
            continue
        low, high = float(left.value), float(right.value)
        heights = math.log(left.time.ratio.median), math.log(right.time.ratio.median)
        part = heights[0] / (heights[0] - heights[1])
        if low > 0:
            value = math.exp(math.log(low) + part * (math.log(high) - math.log(low)))
        else:
            value = low + part * (high - low)
        crossings_found.append(Crossing(value=value, low=low, high=high, faster=right.time.faster))
    return tuple(crossings_found)
