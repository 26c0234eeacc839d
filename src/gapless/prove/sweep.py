"""A sweep: times over the values of one keyword of the inputs, and where one side overtakes the other."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from itertools import pairwise

from gapless.errors import UsageError
from gapless.model.proof import Crossing, Sweep, SweepRow


def parse(text: str) -> tuple[str, tuple[float | str, ...]]:
    """``density=0.001,0.01`` as the keyword and its values: numbers where they are.

    Raises:
        UsageError: it does not have that form.
    """
    key, equals, values = text.partition("=")
    words = [word.strip() for word in values.split(",") if word.strip()]
    if not equals or not key.strip().isidentifier() or len(words) < 2:
        raise UsageError(
            f"--sweep {text}: give a keyword of the inputs and at least two values: density=0.01,0.1"
        )
    return key.strip(), tuple(_value(word) for word in words)


def _value(word: str) -> float | str:
    try:
        value = ast.literal_eval(word)
    except (SyntaxError, ValueError):
        return word
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else word


def swept(key: str, rows: Sequence[SweepRow]) -> Sweep:
    """`rows` in the order of their values, and where the faster side changes."""
    numeric = all(isinstance(row.value, (int, float)) for row in rows)
    ordered = sorted(rows, key=lambda row: row.value) if numeric else list(rows)
    return Sweep(key=key, rows=tuple(ordered), crossings=crossings(ordered) if numeric else ())


def crossings(rows: Sequence[SweepRow]) -> tuple[Crossing, ...]:
    """Where the faster side changes, between neighbours of which each has one beyond doubt.

    Rows in which nothing can be told lie between. The place is where the logarithm of the ratio, a straight
    line over the logarithm of the value, is zero; over the value itself where one is not positive.
    """
    sure = [row for row in rows if row.time.faster != "neither"]
    found = []
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
        found.append(Crossing(value=value, low=low, high=high, faster=right.time.faster))
    return tuple(found)
