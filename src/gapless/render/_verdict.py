"""Write the verdict as text: the sentence, why, and what to do first."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from gapless.model import Change, Verdict
from gapless.render._brief import effects, numbers
from gapless.render._canvas import Canvas

_TONES = {"act": "bold yellow", "fine": "bold green", "unknown": "bold", "failed": "bold red"}
_MIN_COLUMNS_FOR_ONE_LINE, _CHANGE_MARGIN_COLUMNS = 60, 8
"""Width of a terminal that shows a change in one line, and what number and gaps take of it."""
_MAX_LINES_AHEAD = 6
"""Lines before what to do first: so the first change and its effect are within the first ten lines."""


def verdict(canvas: Canvas, answer: Verdict) -> None:
    """Write the verdict, except what was not checked, which closes a report."""
    headline = Text(answer.headline, style=_TONES[answer.level])
    if answer.confidence:
        headline.append(f" ({answer.confidence})", style="not bold dim")
    canvas.wrap(headline)
    reasons = [Text(f"{reason}.") for reason in answer.reasons]
    ahead = _count_reasons_ahead(canvas, headline, reasons) if answer.do_first else len(reasons)
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


def _count_reasons_ahead(canvas: Canvas, headline: Text, reasons: Sequence[Text]) -> int:
    """Return how many reasons go before what to do first: at least one, and those that fit."""
    taken = canvas.rows(headline)
    for number, reason in enumerate(reasons):
        taken += canvas.rows(reason, len("Why: "))
        if number and taken > _MAX_LINES_AHEAD:
            return number
    return len(reasons)


def _reasons(canvas: Canvas, lead: str, reasons: Sequence[Text]) -> None:
    for position, reason in enumerate(reasons):
        canvas.hang(Text(" " * len(lead) if position else lead, style="dim"), reason)


def _change(canvas: Canvas, number: int, each: Change, brought: str) -> None:
    """Write ``1  num_workers=4    train.py:43    8.8 → 1.9 ms``, on two lines if it does not fit."""
    lead, style = f" {number}  ", canvas.style
    where = each.place
    if each.line is not None:
        lines = numbers(each.lines or (each.line.line,))
        where = style.place(
            each.line.file,
            lines,
            max(style.width - len(brought) - _CHANGE_MARGIN_COLUMNS, _MIN_COLUMNS_FOR_ONE_LINE // 2),
        )
    free = style.width - len(lead) - len(where) - len(brought) - 6
    action = style.ascii(each.what)
    if style.width >= _MIN_COLUMNS_FOR_ONE_LINE and len(action) <= free:
        middle = Text(action.ljust(free)) + Text("  " + where, style="dim")
        canvas.spread(Text(lead) + middle, Text(brought, style="green"))
        return
    canvas.hang(Text(lead), Text(each.what))
    canvas.spread(Text(" " * len(lead)) + Text(where, style="dim"), Text(brought, style="green"))
