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


def verdict(canvas: Canvas, answer: Verdict) -> None:
    """Everything of it but what was not seen, which closes a report."""
    headline = Text(answer.headline, style=_TONES[answer.level])
    if answer.confidence:
        headline.append(f" ({answer.confidence})", style="not bold dim")
    canvas.wrapped(headline)
    reasons = [Text(f"{reason}.") for reason in answer.reasons]
    ahead = _ahead(canvas, headline, reasons) if answer.do_first else len(reasons)
    _reasons(canvas, "Why: " if answer.why else "", reasons[:ahead])
    if not answer.do_first:
        return
    canvas.blank()
    of, brought = effects(answer)
    canvas.spread(Text("Do first", style="bold"), Text(of, style="dim"))
    for number, (each, gain) in enumerate(zip(answer.do_first, brought, strict=True), 1):
        _change(canvas, number, each, gain)
    if reasons[ahead:]:
        canvas.blank()
        _reasons(canvas, "Also: ", reasons[ahead:])


def _ahead(canvas: Canvas, headline: Text, reasons: Sequence[Text]) -> int:
    """How many of the reasons stand before what to do first: one, and those that fit."""
    taken = canvas.rows(headline)
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
    action = style.ascii(each.what)
    if style.width >= _NARROW and len(action) <= free:
        middle = Text(action.ljust(free)) + Text("  " + where, style="dim")
        canvas.spread(Text(lead) + middle, Text(brought, style="green"))
        return
    canvas.hanging(Text(lead), Text(each.what))
    canvas.spread(Text(" " * len(lead)) + Text(where, style="dim"), Text(brought, style="green"))
