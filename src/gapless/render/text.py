"""The report for a terminal, or for a file read as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from rich.text import Text

from gapless.model import Finding, Report, Site, SourceLine
from gapless.model.wording import count, number
from gapless.render import _words as words
from gapless.render._canvas import Canvas
from gapless.render._style import Style
from gapless.rules._places import deciding_frame, short_path

_UNFOLDED = ("every-step", "some-steps", "no-steps")
_LABEL = 10
_MANY = 20
"""More findings than this are named by number alone, unless everything is unfolded."""
_BAR = "│ "


def render(report: Report, style: Style) -> str:
    """`report` as text."""
    canvas = Canvas(style)
    _headline(canvas, report)
    shown = [one for one in report.findings if style.unfold or one.frequency.when in _UNFOLDED]
    shown, more = (shown, []) if style.unfold else (shown[:_MANY], shown[_MANY:])
    advised: dict[str, Finding] = {}
    for one in shown:
        canvas.blank()
        _finding(canvas, one, report.steps.steady, advised.setdefault(one.remedy, one))
    if len(shown) < len(report.findings):
        canvas.blank()
        if more:
            waits = number(sum(one.frequency.per_step for one in more))
            canvas.wrapped(
                Text(f"… and {count(len(more), 'finding')} with fewer waits, {waits} per step together")
            )
        _folded(canvas, [one for one in report.findings if one not in shown and one not in more])
    _closing(canvas, report, folded=len(shown) < len(report.findings))
    return canvas.text()


def _headline(canvas: Canvas, report: Report) -> None:
    waits = report.steps.most or (not report.steps.seen and report.findings)
    good = "bold yellow" if report.environment.unused else "bold green"
    canvas.wrapped(Text(report.sentence + ".", style="bold" if waits else good))
    if report.steps.most:
        canvas.wrapped(Text(words.meaning(report.steps), style="dim"))


def _finding(canvas: Canvas, one: Finding, steady: int, advised: Finding) -> None:
    """One finding; `advised` is the first with the same remedy, which is told only there."""
    often = words.often(one.frequency, steady)
    title = Text.assemble((one.code, "bold cyan"), " ", (one.name, "bold"))
    canvas.spread(title, Text(often, style="yellow" if one.frequency.per_step else "dim"))
    place = Text("  backward of " if one.backward else "  ", style="dim")
    place.append(_where(canvas, one), style="not dim")
    if one.line and one.line.function and one.line.function != "<module>":
        place.append(f" in {one.line.function}")
    canvas.line(place)
    if one.line and one.line.code:
        canvas.clipped(Text(f"  {_BAR}", style="dim") + canvas.code(one.line.code))
    for label, rows in _details(canvas, one, advised):
        for position, row in enumerate(rows):
            lead = Text(f"  {label if not position else '':<{_LABEL - 2}}", style="dim")
            if row.plain.startswith(_BAR):
                canvas.clipped(lead + row)
            else:
                canvas.hanging(lead, row)


def _details(canvas: Canvas, one: Finding, advised: Finding) -> Iterator[tuple[str, list[Text]]]:
    frames = list(_frames(canvas, one))
    if frames:
        yield "through", frames
    if one.sites:
        yield "waits", [Text(words.operators(one))]
    if advised is one:
        yield "instead", [Text(one.remedy, style="green")]
    else:
        yield "instead", [Text(f"as for {advised.code} at {_where(canvas, advised)} above", style="dim")]


def _where(canvas: Canvas, one: Finding) -> str:
    return f"{canvas.style.path(one.line.file)}:{one.line.line}" if one.line else one.place


def _frames(canvas: Canvas, one: Finding) -> Iterator[Text]:
    """Library frames as they were called: the one the user's line calls first, the one that waits last."""
    site = one.sites[0] if one.sites else None
    called = tuple(reversed(one.library_stack))
    if canvas.style.frames:
        yield from (_frame(frame) for frame in called)
        return
    decides = deciding_frame(site) if site else None
    if decides is None:
        return
    until = called[: called.index(decides) + 1] if decides in called else called
    yield _frame(until[0])
    if len(until) > 2:
        yield Text(f"… {count(len(until) - 2, 'frame')} between", style="dim")
    if len(until) > 1:
        yield _frame(until[-1])
    if until[-1].code:
        yield Text(_BAR, style="dim") + canvas.code(until[-1].code)
    others = len(_deciding(one.sites)) - 1
    if others > 0:
        yield Text(f"and {count(others, 'more place')} below this line", style="dim")


def _deciding(sites: Iterable[Site]) -> set[SourceLine | None]:
    return {deciding_frame(site) for site in sites}


def _frame(frame: SourceLine) -> Text:
    where = short_path(frame) if frame.library else frame.where
    return Text.assemble(where, (f" {frame.function}", "dim"))


def _folded(canvas: Canvas, findings: list[Finding]) -> None:
    """One line for each kind of finding that is not part of a training step."""
    for when, group in groupby(findings, key=lambda one: one.frequency.when):
        members = list(group)
        waits = count(sum(one.frequency.waits for one in members), "wait")
        lead = Text.assemble((f"{words.WHEN[when]:<{_LABEL + 2}}", "bold"), f"{waits} at ")
        canvas.clipped(
            lead
            + Text(words.places([one.line for one in members if one.line], canvas.style.path), style="dim")
        )


def _closing(canvas: Canvas, report: Report, folded: bool) -> None:
    lines = [Text(line) for line in words.ending(report)]
    lines += [Text.assemble(("note: ", "bold"), note) for note in report.notes]
    hints = [f"gapless rule {report.findings[0].code} explains the first"] if report.findings else []
    hints += ["--all shows the rest"] if folded else []
    hints += list(canvas.style.hints)
    if hints:
        lines.append(Text(" · ".join(hints), style="dim"))
    if lines:
        canvas.blank()
    for line in lines:
        canvas.wrapped(line)
