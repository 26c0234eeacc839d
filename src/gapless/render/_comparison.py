"""A comparison for a terminal, and as JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.text import Text

from gapless.model import SourceLine
from gapless.model.comparison import (
    Comparison,
    FindingChange,
    LineChange,
    Measure,
    PhaseChange,
    Scale,
    Side,
    WorkChange,
    scale,
)
from gapless.model.wording import count, duration, number, rate, size
from gapless.render import _memory_comparison
from gapless.render import _table as table
from gapless.render import _words as words
from gapless.render._canvas import Canvas
from gapless.render._style import Style
from gapless.render.json import document, plain

FORMAT = "gapless-comparison"
VERSION = 1

Row = TypeVar("Row")

_SHOWN = 8
"""Rows of a list that stand for the rest, unless everything is unfolded."""


def as_json(made: Comparison, style: Style) -> str:
    """`made` as a JSON object in one line, every field in it."""
    return document(FORMAT, VERSION, plain(made), style)


def as_text(made: Comparison, style: Style) -> str:
    """`made` as text: the sentence, then what changed, part by part."""
    canvas = Canvas(style)
    canvas.wrapped(Text(made.sentence + ".", style="bold"))
    canvas.blank()
    for name, side in (("before", made.before), ("after", made.after)):
        canvas.hanging(Text(f"{name:<8}", style="dim"), Text(_side(side, style)))
    if made.of == "profiles":
        _times(canvas, made)
        _measures(canvas, made.measures)
        _phases(canvas, made.phases)
        _work(canvas, made, "kernels by main operator", made.operators)
        _work(canvas, made, "kernels", made.kernels)
        _lines(canvas, made)
        _places(canvas, made)
    _findings(canvas, made)
    if made.memory is not None:
        canvas.blank()
        _memory_comparison.draw(canvas, made.memory)
    _closing(canvas, made)
    return canvas.text()


def _side(side: Side, style: Style) -> str:
    parts = [style.path(side.name)]
    if side.files > 1:
        parts.append(f"rank {side.rank}" if side.rank >= 0 else style.path(side.path))
    if side.steps:
        parts.append(count(side.steps, "step"))
    if side.device:
        parts.append(side.device)
    return ", ".join(parts)


def _times(canvas: Canvas, made: Comparison) -> None:
    unit = scale(max(made.length.before, made.length.after), least=1)
    head = "per step" if made.per == "step" else "whole trace"
    table.head(canvas, f"{head}, {unit.name}")
    table.row(canvas, made.per, unit(made.length.before), unit(made.length.after), table.change(made.length))
    for name, field in (("median", "median"), ("lower quartile", "low"), ("upper quartile", "high")):
        before, after = (
            unit(getattr(side.spread, field)) if side.spread else "" for side in (made.before, made.after)
        )
        if before or after:
            table.row(canvas, f"  {name}", before, after, Text())
    for row in made.split:
        table.row(canvas, f"  {row.name}", unit(row.before), unit(row.after), table.change(row))
    if made.idle and max(made.idle.before, made.idle.after):
        table.head(canvas, f"GPU idle by cause, {unit.name}")
        table.row(canvas, "idle", unit(made.idle.before), unit(made.idle.after), table.change(made.idle))
        for row in made.causes:
            table.row(canvas, f"  {row.name}", unit(row.before), unit(row.after), table.change(row))


def _measures(canvas: Canvas, measures: Sequence[Measure]) -> None:
    if not measures:
        return
    table.head(canvas, "GPU and memory")
    for row in measures:
        table.row(
            canvas, row.name, _amount(row, row.before), _amount(row, row.after), table.other_change(row)
        )


def _amount(measure: Measure, value: float) -> str:
    if value < 0:
        return "unknown"
    if measure.unit == "share":
        return f"{100 * value:.1f} %"
    if measure.unit == "percent":
        return f"{value:.1f} %"
    if measure.unit == "bytes":
        return size(int(value))
    if measure.unit == "ns":
        unit = scale(value)
        return f"{unit(value)} {unit.name}"
    return f"{value:,.0f}" if value >= 10 else number(value)


def _phases(canvas: Canvas, phases: Sequence[PhaseChange]) -> None:
    fields = ("host", "device", "idle")
    rows = [[getattr(phase, field) for field in fields] for phase in phases]
    if not rows:
        return
    unit = scale(max(max(one.before, one.after) for row in rows for one in row), least=1)
    canvas.blank()
    column = min(10, max(6, (canvas.style.width - 14) // 6))
    table.beside(canvas, f"phases, {unit.name}", Text("".join(f"{f:>{2 * column}}" for f in fields)))
    before, after = ("before", "after") if column > 6 else ("was", "is")
    table.beside(canvas, "", Text(f"{before:>{column}}{after:>{column}}" * 3, style="dim"))
    for phase, row in zip(phases, rows, strict=True):
        numbers = "".join(f"{unit(one.before):>{column}}{unit(one.after):>{column}}" for one in row)
        table.beside(canvas, f"  {phase.name}", Text(numbers))


def _work(canvas: Canvas, made: Comparison, title: str, rows: Sequence[WorkChange]) -> None:
    changed = [row for row in rows if row.state != "same"]
    if not changed:
        return
    unit = scale(max(max(row.before, row.after) for row in changed), least=1)
    told = any(row.calls_before >= 0 or row.calls_after >= 0 for row in changed)
    table.head(canvas, f"{title}, {unit.name}", "launches" if told else "")
    for row in _some(canvas, changed):
        name = short(row.name) + (f" · {row.operator}" if row.operator else "")
        table.row(
            canvas,
            f"  {name}",
            _time(unit, row.before, row.at_most),
            _time(unit, row.after, row.at_most),
            change=table.state(row.state, row.before, row.after),
            more=_calls(row) if told else None,
        )
    _rest(canvas, len(changed), "changed by less")


def _time(unit: Scale, nanoseconds: float, at_most: float) -> str:
    return unit(nanoseconds) if nanoseconds >= 0 else f"<{unit(at_most)}"


def _calls(row: WorkChange) -> str:
    before, after = (f"{calls:,.0f}" if calls >= 0 else "?" for calls in (row.calls_before, row.calls_after))
    if before == after:
        return before if before != "?" else ""
    return f"{before} to {after}"


def short(kernel: str) -> str:
    """A kernel's name without namespaces, template arguments and parameters."""
    text = kernel.removeprefix("void ").replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    text = re.split(r"[<(]", text, maxsplit=1)[0].strip() or kernel
    return text.rsplit("::", 1)[-1] if not text.startswith("aten::") and "::" in text else text


def _lines(canvas: Canvas, made: Comparison) -> None:
    changed = [row for row in made.lines if row.state != "same" and (row.was or row.line)]
    if not changed:
        return
    largest = max(
        max(row.device_before, row.device_after, row.idle_before, row.idle_after) for row in changed
    )
    unit = scale(largest, least=1)
    column = 9
    canvas.blank()
    title = f"lines, {unit.name}"
    table.beside(canvas, title, Text(f"{'device':>{2 * column}}{'idle':>{2 * column}}      "))
    table.beside(canvas, "", Text(f"{'before':>{column}}{'after':>{column}}" * 2 + " " * 6, style="dim"))
    room = canvas.style.width if canvas.style.width < 60 else canvas.style.width - 4 * column - 6
    for row in _some(canvas, changed):
        cells = (row.device_before, row.device_after, row.idle_before, row.idle_after)
        numbers = "".join(f"{unit(cell) if cell >= 0 else '':>{column}}" for cell in cells)
        mark = f"{row.state if row.state in ('gone', 'new') else '':>6}"
        name = f"  {_line_name(row, canvas.style, room - 3)}"
        table.beside(canvas, name, Text.assemble(numbers, (mark, table.color(row.state))))
    _rest(canvas, len(changed), "changed by less")


def _line_name(row: LineChange, style: Style, room: int) -> str:
    """The line, of whose folders as many are named as there is room for."""
    line = row.line or row.was
    name = _place(line, style) if line else row.place
    while len(name) > room and "/" in name.removeprefix("…/"):
        name = "…/" + name.removeprefix("…/").split("/", 1)[1]
    return name


def _places(canvas: Canvas, made: Comparison) -> None:
    """Idleness where no line is known."""
    changed = [row for row in made.lines if row.state != "same" and not (row.was or row.line)]
    if not changed:
        return
    unit = scale(max(max(row.idle_before, row.idle_after) for row in changed), least=1)
    table.head(canvas, f"GPU idle by place, {unit.name}")
    for row in _some(canvas, changed):
        told = table.state(row.state, row.idle_before, row.idle_after)
        table.row(canvas, f"  {row.place}", unit(row.idle_before), unit(row.idle_after), told)
    _rest(canvas, len(changed), "changed by less")


def _place(line: SourceLine, style: Style) -> str:
    function = f" {line.function}" if line.function and line.function != "<module>" else ""
    return f"{style.path(line.file)}:{line.line}{function}"


def _findings(canvas: Canvas, made: Comparison) -> None:
    if not made.findings:
        return
    changed = [row for row in made.findings if row.state != "same"]
    canvas.blank()
    canvas.clipped(Text("findings", style="bold"))
    for row in _some(canvas, changed):
        _finding(canvas, made, row)
    _rest(canvas, len(changed), "changed too")
    same = len(made.findings) - len(changed)
    if same:
        canvas.wrapped(Text(f"  {count(same, 'finding')} as before", style="dim"))


def _finding(canvas: Canvas, made: Comparison, row: FindingChange) -> None:
    one = row.finding
    title = Text.assemble(
        (f"  {row.state:<5}", table.color(row.state)), (one.code, "bold cyan"), " ", (one.name, "bold")
    )
    cost = _finding_change(made, row)
    canvas.spread(title, Text(cost)) if cost else canvas.line(title)
    was, now = row.before and row.before.line, row.after and row.after.line
    before = f" (line {was.line} before)" if was and now and was.line != now.line else ""
    lead = Text("       backward of " if one.backward else "       ")
    if one.line is not None:
        where, _, function = _place(one.line, canvas.style).partition(" ")
        canvas.place(lead, where, (f" {function}" if function else "") + before)
    elif one.place:
        canvas.hanging(lead, Text(one.place + before))


def _finding_change(made: Comparison, row: FindingChange) -> str:
    """What it costs now, and what it did; of a finding that is gone what it did."""
    if made.of == "sessions":
        return _then(row, row.calls_before, row.calls_after, lambda waits: count(waits, "wait"), _per(row))
    if max(row.idle_before, row.idle_after) > 0:
        return "idle " + _then(row, row.idle_before, row.idle_after, duration)
    if max(row.calls_before, row.calls_after) > 0:
        return _then(row, row.calls_before, row.calls_after, lambda calls: count(calls, "call"))
    return ""


def _per(row: FindingChange) -> str:
    frequency = row.finding.frequency
    return " a step" if frequency.per_step else f" ({words.WHEN[frequency.when]})"


def _then(row: FindingChange, before: float, after: float, say: Callable[[float], str], per: str = "") -> str:
    """The number now, and before where it differs: ``1 wait a step instead of 2 waits``."""
    if per == " a step" and any(0 < one < 1 for one in (before, after)):
        say, per = (lambda waits: rate(waits, each="a")), ""
    if row.after is None:
        return say(before) + per
    told = say(after) if row.before is None or before == after else f"{say(after)} instead of {say(before)}"
    return told + per


def _closing(canvas: Canvas, made: Comparison) -> None:
    lines = [Text.assemble(("note: ", "bold"), note) for note in made.notes]
    if canvas.style.hints:
        lines.append(Text(" · ".join(canvas.style.hints), style="dim"))
    if lines:
        canvas.blank()
    for line in lines:
        canvas.wrapped(line)


def _some(canvas: Canvas, rows: Sequence[Row]) -> Sequence[Row]:
    return rows if canvas.style.unfold else rows[:_SHOWN]


def _rest(canvas: Canvas, rows: int, what: str) -> None:
    if rows > _SHOWN and not canvas.style.unfold:
        canvas.clipped(Text(f"  … and {rows - _SHOWN} more {what} (--all)", style="dim"))
