"""Rows of two sides and their change, for comparisons and proofs."""

from __future__ import annotations

from collections.abc import Sequence

from gapless.model import Table
from gapless.model.comparison import Measure, Scale, State, percents, scale
from gapless.model.table import Row, Tone, Where, table
from gapless.model.wording import binary_size, number

COLUMNS = "before | after | change"
TONES: dict[State, Tone] = {"gone": "good", "less": "good", "same": "dim", "more": "bad", "new": "bad"}
SHOWN = 8
"""Rows of a list that stand for the rest, unless everything is unfolded."""


def sided(title: str, rows: Sequence[Row], shown: int = -1, more: str = "", where: Where = "after") -> Table:
    """A table of two sides; with a further column `more`."""
    columns = f"{COLUMNS} | {more}" if more else COLUMNS
    return table(title, columns, rows, shown=shown, rest="that changed less", where=where)


def measured(one: Measure, unit: Scale | None = None, name: str = "", judged: bool = True) -> Row:
    """A number of both sides. What is not `judged` is better or worse as it comes."""
    before, after = (_amount(one, value, unit) for value in (one.before, one.after))
    percent = one.percent or 0.0
    tone: Tone = "" if not judged or abs(percent) < 1 else "good" if percent < 0 else "bad"
    return Row((name or one.name, before, after, change(one)), tone)


def _amount(one: Measure, value: float, unit: Scale | None) -> str:
    if value < 0:
        return "unknown"
    if one.unit == "ns":
        chosen = unit or scale(max(one.before, one.after), least=1)
        return chosen(value) if unit else f"{chosen(value)} {chosen.name}"
    if one.unit in ("share", "percent"):
        return f"{(100 if one.unit == 'share' else 1) * value:.1f} %"
    if one.unit == "bytes":
        return binary_size(int(value))
    return f"{value:,.0f}" if value >= 10 else number(round(value, 2))


def change(one: Measure) -> str:
    """``-34 %``, ``new``, of shares the difference in points; "" where it cannot be told."""
    if not one.known:
        return ""
    if one.unit in ("share", "percent"):
        points = one.change * (100 if one.unit == "share" else 1)
        return f"{points:+.1f}" if abs(points) >= 0.05 else "0"
    if one.percent is None:
        return "new" if one.after else ""
    return signed(one.percent)


def signed(percent: float) -> str:
    """``-34 %``, ``+2.5 %``, ``×12``."""
    if abs(percent) < 0.05:
        return "0 %"
    if percent >= 1000:
        return f"×{percent / 100 + 1:.0f}"
    return f"{'-' if percent < 0 else '+'}{percents(percent)}"


def became(state: State, before: float, after: float) -> str:
    """What became of something: in percent where both sides have it."""
    if state in ("gone", "new") or before <= 0 or after < 0:
        return state
    return signed(100 * (after - before) / before)
