"""The report for a terminal, or for a file read as one."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from gapless.model import Finding, Report
from gapless.model.wording import count, percent
from gapless.render import _words as words
from gapless.render._canvas import Canvas
from gapless.render._finding import finding
from gapless.render._style import Style
from gapless.render._tables import tables
from gapless.render._verdict import verdict

SUMMARIZED = True
"""Several reports begin with a summary of all."""
BETWEEN = "\n"
BESIDE = True
_MANY = 20
"""More findings than this are named by number alone, unless everything is unfolded."""
_MATTERS = 0.005
"""A finding that leaves the GPU idle for less than this share of the steps is folded away."""
_UNSEEN = 3
"""Lines of what was not seen, the most important first."""
_LONG = 0.05
"""A wait in which the CPU spends this share of the steps is told of even where it costs nothing."""


def render(report: Report, style: Style) -> str:
    """`report` as text: the verdict, numbers, findings, more numbers, and what was not seen."""
    canvas = Canvas(style)
    verdict(canvas, report.verdict)
    about = words.about(report, style.path)
    if about:
        canvas.wrapped(Text(about, style="dim"))
    folded = tables(canvas, report.tables, "before")
    total = report.profile.steps.total if report.profile is not None else 0
    shown = [item for item in report.findings if style.unfold or _matters(item, total)]
    shown = shown if style.unfold else shown[:_MANY]
    advised: dict[str, Finding] = {}
    for item in shown:
        canvas.blank()
        finding(canvas, item, report, advised.setdefault(item.remedy, item))
    folded |= _rest(canvas, report, shown)
    folded |= tables(canvas, report.tables, "after")
    _closing(canvas, report, shown, folded)
    return canvas.text()


def _matters(finding: Finding, total: int) -> bool:
    """Whether a finding is told in full without being asked for: what steps lose, and what has no time."""
    loss = finding.loss
    if loss is not None and (loss.idle or loss.blocked):
        # Other tools would name a long wait first: that it costs nothing is worth knowing.
        return loss.share >= _MATTERS or (total > 0 and loss.blocked >= _LONG * total)
    return finding.frequency.in_steps and not finding.frequency.rare


def _rest(canvas: Canvas, report: Report, shown: Sequence[Finding]) -> bool:
    """One line for the findings of steps that are not told in full."""
    rest = [item for item in report.findings if item not in shown]
    if not rest:
        return False
    inside = [item for item in rest if item.frequency.in_steps and not item.frequency.rare]
    if inside:
        canvas.blank()
        lost = max((item.loss.share for item in inside if item.loss), default=0.0)
        least = (
            f", each below {percent(max(lost, _MATTERS))} of a step"
            if report.profile
            else " with fewer syncs"
        )
        canvas.wrapped(Text(f"… and {count(len(inside), 'finding')}{least} (--all)", style="dim"))
    return True


def _closing(canvas: Canvas, report: Report, shown: Sequence[Finding], folded: bool) -> None:
    lines = [Text(f"{text}.") for text in report.verdict.not_seen[:_UNSEEN]]
    lines += [Text.assemble(("note: ", "bold"), note) for note in report.notes]
    hints = [f"gapless rule {item.code} explains the first" for item in shown[:1]]
    hints += ["--all shows the rest"] if folded and not canvas.style.unfold else []
    hints += list(canvas.style.hints)
    if hints:
        lines.append(Text(" · ".join(hints), style="dim"))
    if lines:
        canvas.blank()
    for line in lines:
        canvas.wrapped(line)
