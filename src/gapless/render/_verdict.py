"""The verdict as text: the sentence, why, and what to do first."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from gapless.model import Change, Verdict
from gapless.render._brief import effects, numbers
from gapless.render._canvas import Canvas

_TONES = {"act": "bold yellow", "fine": "bold green", "unknown": "bold", "failed": "bold red"}
_NARROW, _MARGIN = 60, 8
_AHEAD = 6
"""Lines before what to do first, so that the first change and what it brings stand in the first ten."""


def verdict(canvas: Canvas, one: Verdict) -> None:
    """Everything of it but what was not seen, which closes a report."""
    told = Text(one.headline, style=_TONES[one.level])
    if one.confidence:
        told.append(f" ({one.confidence})", style="not bold dim")
    canvas.wrapped(told)
    reasons = [Text(f"{reason}.") for reason in one.reasons]
    ahead = _ahead(canvas, told, reasons) if one.do_first else len(reasons)
    _reasons(canvas, "Why: " if one.why else "", reasons[:ahead])
    if not one.do_first:
        return
    canvas.blank()
    of, brought = effects(one)
    canvas.spread(Text("Do first", style="bold"), Text(of, style="dim"))
    for number, (each, gain) in enumerate(zip(one.do_first, brought, strict=True), 1):
        _change(canvas, number, each, gain)
    if reasons[ahead:]:
        canvas.blank()
        _reasons(canvas, "Also: ", reasons[ahead:])


def _ahead(canvas: Canvas, told: Text, reasons: Sequence[Text]) -> int:
    """How many of the reasons stand before what to do first: one, and those that fit."""
    taken = canvas.rows(told)
    for number, reason in enumerate(reasons):
        taken += canvas.rows(reason, len("Why: "))
        if number and taken > _AHEAD:
            return number
    return len(reasons)


def _reasons(canvas: Canvas, lead: str, reasons: Sequence[Text]) -> None:
    for position, reason in enumerate(reasons):
        canvas.hanging(Text(" " * len(lead) if position else lead, style="dim"), reason)


def _change(canvas: Canvas, number: int, each: Change, brought: str) -> None:
    """``1  num_workers=4    train.py:43    8.8 → 1.9 ms``; the place below where there is no room beside."""
    lead, style = f" {number}  ", canvas.style
    where = each.place
    if each.line is not None:
        lines = numbers(each.lines or (each.line.line,))
        where = style.place(each.line.file, lines, max(style.width - len(brought) - _MARGIN, _NARROW // 2))
    free = style.width - len(lead) - len(where) - len(brought) - 6
    what = style.ascii(each.what)
    if style.width >= _NARROW and len(what) <= free:
        middle = Text(what.ljust(free)) + Text("  " + where, style="dim")
        canvas.spread(Text(lead) + middle, Text(brought, style="green"))
        return
    canvas.hanging(Text(lead), Text(each.what))
    canvas.spread(Text(" " * len(lead)) + Text(where, style="dim"), Text(brought, style="green"))
