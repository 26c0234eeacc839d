"""Rows of two sides and their change, for comparisons and proofs."""

from __future__ import annotations

from collections.abc import Sequence

from gapless.model import Table
from gapless.model.comparison import Measure, Scale, State, percents, scale
from gapless.model.table import Row, Tone, Where, table
from gapless.model.wording import binary_size, number

COLUMNS = "before | after | change"
TONES: dict[State, Tone] = {"gone": "good", "less": "good", "same": "dim", "more": "bad", "new": "bad"}
MAX_ROWS_SHOWN = 8
"""Rows of a list shown without unfolding."""


def two_sided_table(
    title: str, rows: Sequence[Row], shown: int = -1, more: str = "", where: Where = "after"
) -> Table:
    """Return a table of two sides and their change, with a further column `more`."""
    columns = f"{COLUMNS} | {more}" if more else COLUMNS
    return table(title, columns, rows, shown=shown, rest="that changed less", where=where)


def measure_row(
    measure: Measure, unit: Scale | None = None, name: str = "", judged: bool = True, least: float = 0.0
) -> Row:
    """Return the row of a number on both sides.

    Its tone is neutral if not `judged`, or if it changes by less than `least` or 1 %.
    """
    before, after = (_amount(measure, value, unit) for value in (measure.before, measure.after))
    percent = measure.percent or 0.0
    small = abs(percent) < 1 or abs(measure.change) < least
    tone: Tone = "" if not judged or small else "good" if percent < 0 else "bad"
    return Row((name or measure.name, before, after, format_change(measure)), tone)


def _amount(measure: Measure, value: float, unit: Scale | None) -> str:
    """Return `value` of `measure` as text in its unit."""
    if value < 0:
        return "unknown"
    if measure.unit == "ns":
        chosen = unit or scale(max(measure.before, measure.after), least=1)
        return chosen(value) if unit else f"{chosen(value)} {chosen.name}"
    if measure.unit in ("share", "percent"):
        return f"{(100 if measure.unit == 'share' else 1) * value:.1f} %"
    if measure.unit == "bytes":
        return binary_size(int(value))
    return f"{value:,.0f}" if value >= 10 else number(round(value, 2))


def format_change(measure: Measure) -> str:
    """Return ``-34 %`` or ``new``, for shares the difference in points; "" if unknown."""
    if not measure.known:
        return ""
    if measure.unit in ("share", "percent"):
        points = measure.change * (100 if measure.unit == "share" else 1)
        return f"{points:+.1f}" if abs(points) >= 0.05 else "0"
    if measure.percent is None:
        return "new" if measure.after else ""
    return format_percent(measure.percent)


def format_percent(percent: float) -> str:
    """Return ``-34 %``, ``+2.5 %`` or ``×12``."""
    if abs(percent) < 0.05:
        return "0 %"
    if percent >= 1000:
        return f"×{percent / 100 + 1:.0f}"
    return f"{'-' if percent < 0 else '+'}{percents(percent)}"


def describe_change(state: State, before: float, after: float) -> str:
    """Return the change in percent if both sides have the thing, else `state`."""
    if state in ("gone", "new") or before <= 0 or after < 0:
        return state
    return format_percent(100 * (after - before) / before)
