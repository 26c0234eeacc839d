"""What a step would take on the GPU that was emulated, as the last lines of a report."""

from __future__ import annotations

from rich.text import Text

from gapless.model import Report
from gapless.model.estimate import Estimate
from gapless.model.wording import duration, percent
from gapless.render._canvas import Canvas

_MATTERS = 0.005
_WIDE = 3
_LIMITS = {"host": "the host's own work", "device": "the GPU's own work"}


def estimated(canvas: Canvas, report: Report, of: Estimate) -> None:
    """The step, what all waits cost in it, and what the numbers rest on."""
    if of.refused:
        if report.steps.seen and not report.environment.unused:
            canvas.blank()
            canvas.wrapped(Text(f"No estimate of a step's time: {of.refused}.", style="dim"))
        return
    canvas.blank()
    canvas.wrapped(Text(_step(of), style="bold"))
    if of.saved.most >= _MATTERS * of.step.likely and report.findings:
        canvas.wrapped(Text(_saved(of)))
    for reason in of.reasons:
        canvas.wrapped(Text(f"Estimates are bounds: {reason}{_remedy(of)}.", style="dim"))
    if canvas.style.unfold:
        canvas.wrapped(Text(f"Estimates assume: {'; '.join(of.assumptions)}.", style="dim"))


def _step(of: Estimate) -> str:
    source = ", with times from a real profile" if of.calibrated else ""
    reach = f"{duration(of.step.least)} to {duration(of.step.most)}"
    where = f" on {of.gpu}" if of.gpu else ""
    return (
        f"Estimated{source}: a step of {duration(of.step.likely)} ({reach}){where}, at the sizes of this "
        f"run; the GPU has work for {duration(of.device)} of it, the host for {duration(of.host)}."
    )


def _saved(of: Estimate) -> str:
    if of.reasons or of.saved.most > _WIDE * max(of.saved.least, 1):
        return f"All waits together cost at most {duration(of.saved.most)} of it."
    left = of.step.likely - of.prices.all
    told = f"Without all waits it would be {duration(left)}, {percent(of.prices.all / of.step.likely)} less"
    limit = _LIMITS.get(of.prices.remains)
    return f"{told}; then {limit} is the limit." if limit else f"{told}."


def _remedy(of: Estimate) -> str:
    return "" if of.calibrated else " (--calibrate takes the times of a real profile)"
