"""Tables of two sides and their change, as wide as the terminal."""

from __future__ import annotations

from rich.text import Text

from gapless.model.comparison import Measure, State, percents
from gapless.render._canvas import Canvas

NUMBER = 10
CHANGE = 9
LAST = 13


def head(canvas: Canvas, title: str, more: str = "") -> None:
    canvas.blank()
    columns = f"{'before':>{NUMBER}}{'after':>{NUMBER}}{'change':>{CHANGE}}"
    columns += f"{more:>{LAST}}" if more else ""
    name = fitted(canvas, title, canvas.style.width - len(columns), style="bold")
    canvas.clipped(Text.assemble(name, (columns, "dim")))


def row(canvas: Canvas, name: str, before: str, after: str, change: Text, more: str | None = None) -> None:
    numbers = f"{before:>{NUMBER}}{after:>{NUMBER}}"
    told = Text(" " * (CHANGE - change.cell_len)) + change
    last = "" if more is None else f"{more:>{LAST}}"
    room = canvas.style.width - len(numbers) - told.cell_len - len(last)
    written = Text.assemble(fitted(canvas, name, room), numbers, told, (last, "dim"))
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
