"""Tables of two sides and their change, as wide as the terminal."""

from __future__ import annotations

from rich.text import Text

from gapless.model.comparison import Measure, State, percents
from gapless.render._canvas import Canvas

NUMBER = 10
CHANGE = 9
LAST = 13
_LEAST = 14
"""Columns for a name; with fewer it stands above its numbers."""


def head(canvas: Canvas, title: str, more: str = "") -> None:
    canvas.blank()
    columns = f"{'before':>{NUMBER}}{'after':>{NUMBER}}{'change':>{CHANGE}}"
    columns += f"{more:>{LAST}}" if more else ""
    beside(canvas, title, Text(columns, style="dim"), style="bold")


def row(canvas: Canvas, name: str, before: str, after: str, change: Text, more: str | None = None) -> None:
    numbers = f"{before:>{NUMBER}}{after:>{NUMBER}}"
    told = Text(" " * (CHANGE - change.cell_len)) + change
    last = "" if more is None else f"{more:>{LAST}}"
    beside(canvas, name, Text.assemble(numbers, told, (last, "dim")))


def beside(canvas: Canvas, name: str, columns: Text, style: str = "") -> None:
    """`name` and, at the right margin, `columns`: on a line of their own where the terminal is narrow."""
    room = canvas.style.width - columns.cell_len
    if room >= _LEAST:
        written = fitted(canvas, name, room, style) + columns
    else:
        if name.strip():
            canvas.clipped(Text(name, style=style))
        blank = columns.cell_len - len(columns.plain.lstrip())
        written = Text(" " * max(room, 0)) + columns[min(max(-room, 0), blank) :]
    written.rstrip()
    canvas.clipped(written)


def fitted(canvas: Canvas, name: str, room: int, style: str = "") -> Text:
    """`name` in `room` columns and a gap behind it, cut at its end."""
    text = Text(canvas.style.ascii(name), style=style)
    if text.cell_len > room - 1:
        text.truncate(max(room - 1, 1), overflow="ellipsis" if canvas.style.unicode else "crop")
    text.pad_right(max(room - text.cell_len, 0))
    return text


def change(measure: Measure) -> Text:
    """The change in percent; green where it is less."""
    if not measure.known:
        return Text()
    if not measure.before:
        return Text("new", style="red") if measure.after else Text()
    percent = measure.percent or 0.0
    if abs(percent) < 0.05:
        return Text("0 %", style="dim")
    color = "" if abs(percent) < 1 else "green" if percent < 0 else "red"
    return Text(signed(percent), style=color)


def signed(percent: float) -> str:
    if percent >= 1000:
        return f"×{percent / 100 + 1:.0f}"
    return f"{'-' if percent < 0 else '+'}{percents(percent)}"


def other_change(measure: Measure) -> Text:
    """Of shares the difference in points; no colour, for more of these is better or worse as it comes."""
    if not measure.known:
        return Text()
    if measure.unit in ("share", "percent"):
        points = measure.change * (100 if measure.unit == "share" else 1)
        return Text(f"{points:+.1f}" if abs(points) >= 0.05 else "0", style="dim")
    if measure.percent is None or abs(measure.percent) < 0.05:
        return Text("" if measure.percent is None else "0 %", style="dim")
    return Text(signed(measure.percent))


def state(state: State, before: float, after: float) -> Text:
    if state in ("gone", "new"):
        return Text(state, style=color(state))
    if before <= 0 or after < 0:
        return Text(state, style=color(state))
    return Text(signed(100 * (after - before) / before), style=color(state))


def color(state: State) -> str:
    return {"gone": "green", "less": "green", "more": "red", "new": "red", "same": "dim"}[state]
