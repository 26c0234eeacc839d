"""Render the report for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from gapless.model import Finding, Report
from gapless.model.wording import count, percent
from gapless.render import _brief as brief
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
_MAX_FINDINGS_SHOWN = 20
"""Findings shown, unless everything is unfolded; the rest is only counted."""
_MAX_UNSEEN_SHOWN = 3
"""Lines about what was not checked, the most important first: they must not outweigh the findings."""
_MIN_BLOCKED_SHARE = 0.05
"""A wait that blocks the CPU for this share of the steps is shown even if it costs nothing."""


def render(report: Report, style: Style) -> str:
    """Render `report`: the verdict, tables, findings, more tables, and what was not checked."""
    canvas = Canvas(style)
    verdict(canvas, report.verdict)
    about = words.about(report, style.path)
    if about:
        canvas.wrap(Text(about, style="dim"))
    folded = tables(canvas, report.tables, "before")
    total = report.profile.steps.total if report.profile is not None else 0
    shown = [item for item in report.findings if style.unfold or _is_shown(item, total)]
    shown = shown if style.unfold else shown[:_MAX_FINDINGS_SHOWN]
    advised: dict[str, Finding] = {}
    for item in shown:
        canvas.blank()
        finding(canvas, item, report, advised.setdefault(item.remedy, item))
    folded |= _rest(canvas, report, shown)
    folded |= tables(canvas, report.tables, "after")
    _closing(canvas, report, shown, folded)
    return canvas.text()


def _is_shown(finding: Finding, total: int) -> bool:
    """Whether a finding is shown without --all: it costs steps time, or it recurs and has no time."""
    loss = finding.loss
    if loss is not None and (loss.idle or loss.blocked):
        # Other tools name a long wait first: that it costs nothing is worth knowing.
        return loss.share >= brief.MIN_IDLE_SHARE or (
            total > 0 and loss.blocked >= _MIN_BLOCKED_SHARE * total
        )
    return finding.frequency.in_steps and not finding.frequency.rare


def _rest(canvas: Canvas, report: Report, shown: Sequence[Finding]) -> bool:
    """Write one line about the findings that are not shown; return whether there are any."""
    rest = [item for item in report.findings if item not in shown]
    if not rest:
        return False
    inside = [item for item in rest if item.frequency.in_steps and not item.frequency.rare]
    if inside:
        canvas.blank()
        lost = max((item.loss.share for item in inside if item.loss), default=0.0)
        least = (
            f", each below {percent(max(lost, brief.MIN_IDLE_SHARE))} of a step"
            if report.profile
            else " with fewer syncs"
        )
        canvas.wrap(Text(f"… and {count(len(inside), 'finding')}{least} (--all)", style="dim"))
    return True


def _closing(canvas: Canvas, report: Report, shown: Sequence[Finding], folded: bool) -> None:
    lines = [Text(f"{text}.") for text in report.verdict.not_seen[:_MAX_UNSEEN_SHOWN]]
    lines += [Text.assemble(("note: ", "bold"), note) for note in report.notes]
    hints = [f"gapless rule {item.code} explains the first" for item in shown[:1]]
    hints += ["--all shows the rest"] if folded and not canvas.style.unfold else []
    hints += list(canvas.style.hints)
    if hints:
        lines.append(Text(" · ".join(hints), style="dim"))
    if lines:
        canvas.blank()
    for line in lines:
        canvas.wrap(line)
