"""The report for a terminal, or for a file read as one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.text import Text

from gapless.model import Finding, Report
from gapless.model.wording import count, rate
from gapless.render import _profile
from gapless.render import _words as words
from gapless.render._canvas import Canvas
from gapless.render._estimate import estimated
from gapless.render._finding import LABEL, finding
from gapless.render._style import Style

_UNFOLDED = ("every-step", "some-steps", "no-steps")
_MANY = 20
"""More findings than this are named by number alone, unless everything is unfolded."""


def render(report: Report, style: Style) -> str:
    """`report` as text."""
    if report.profile is not None:
        return _profile.render(report, report.profile, style)
    canvas = Canvas(style)
    _headline(canvas, report)
    shown = [one for one in report.findings if style.unfold or one.frequency.when in _UNFOLDED]
    shown, more = (shown, []) if style.unfold else (shown[:_MANY], shown[_MANY:])
    advised: dict[str, Finding] = {}
    for one in shown:
        canvas.blank()
        often = words.often(one.frequency, report.steps.steady)
        weight = Text(often, style="yellow" if one.frequency.per_step else "dim")
        finding(canvas, one, weight, advised.setdefault(one.remedy, one), estimate=report.estimate)
    if len(shown) < len(report.findings):
        canvas.blank()
        if more:
            waits = rate(sum(one.frequency.per_step for one in more))
            canvas.wrapped(Text(f"… and {count(len(more), 'finding')} with fewer waits, {waits} together"))
        _folded(canvas, [one for one in report.findings if one not in shown and one not in more])
    if report.estimate is not None:
        estimated(canvas, report, report.estimate)
    _closing(canvas, report, (shown or report.findings)[:1], folded=len(shown) < len(report.findings))
    return canvas.text()


def _headline(canvas: Canvas, report: Report) -> None:
    waits = report.steps.most or (not report.steps.seen and report.findings)
    good = "bold yellow" if report.environment.unused else "bold green"
    canvas.wrapped(Text(report.sentence + ".", style="bold" if waits else good))
    if report.steps.most:
        canvas.wrapped(Text(words.meaning(report.steps), style="dim"))


def _folded(canvas: Canvas, findings: list[Finding]) -> None:
    """One line for each kind of finding that is not part of a training step."""
    for when, group in groupby(findings, key=lambda one: one.frequency.when):
        members = list(group)
        waits = count(sum(one.frequency.waits for one in members), "wait")
        lead = Text.assemble((f"{words.WHEN[when]:<{LABEL + 2}}", "bold"), f"{waits} at ")
        canvas.clipped(
            lead
            + Text(words.places([one.line for one in members if one.line], canvas.style.path), style="dim")
        )


def _closing(canvas: Canvas, report: Report, first: Sequence[Finding], folded: bool) -> None:
    lines = [Text(line) for line in words.ending(report)]
    lines += [Text.assemble(("note: ", "bold"), note) for note in report.notes]
    hints = [f"gapless rule {one.code} explains the first" for one in first]
    hints += ["--all shows the rest"] if folded else []
    hints += list(canvas.style.hints)
    if hints:
        lines.append(Text(" · ".join(hints), style="dim"))
    if lines:
        canvas.blank()
    for line in lines:
        canvas.wrapped(line)
