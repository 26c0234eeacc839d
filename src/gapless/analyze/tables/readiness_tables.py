"""Tables of what a CUDA graph could hold of a step, and what prevents more."""

from __future__ import annotations

from gapless.analyze.phrases.speed import time_range
from gapless.model import Report, Table
from gapless.model.readiness import Obstacle, Stretch
from gapless.model.table import Row, table
from gapless.model.wording import percent

_MAX_STRETCHES_SHOWN = 3
"""Stretches shown without unfolding, the longest first."""
_NOTE = "a capture needs fixed shapes, inputs that stay at the same addresses, and a few warm-up steps"


def tables(report: Report) -> tuple[Table, ...]:
    """Return the stretches that could be captured and the obstacles; empty if not analysed."""
    ready = report.readiness
    if ready is None or ready.refused:
        return ()
    results = []
    if ready.stretches:
        rows = [_stretch(stretch, ready.launches) for stretch in ready.stretches]
        results.append(
            table(
                "Could be captured, from",
                "<to | launches | of a step | saves per step",
                rows,
                shown=_MAX_STRETCHES_SHOWN,
                where="before",
                notes=(_NOTE,),
            )
        )
    if ready.obstacles:
        rows = [_obstacle(obstacle, ready.steps) for obstacle in ready.obstacles]
        results.append(
            table("Cannot go into a CUDA graph", "<at | steps | <change", rows, shown=8, where="before")
        )
    return tuple(results)


def _stretch(stretch: Stretch, launches: int) -> Row:
    """Return the row of a stretch that could be captured."""
    saved = time_range(stretch.saved) if stretch.saved else ""
    share = percent(stretch.launches / launches) if launches else ""
    first, last = (at.short if at is not None else "?" for at in (stretch.first, stretch.last))
    return Row((first, last, str(stretch.launches), share, saved))


def _obstacle(obstacle: Obstacle, steps: int) -> Row:
    """Return the row of what cannot be captured."""
    step_count = "each" if obstacle.steps >= steps else f"{obstacle.steps} of {steps}"
    code = f" ({obstacle.code})" if obstacle.code else ""
    return Row(
        (
            obstacle.reason,
            obstacle.line.short if obstacle.line is not None else "",
            step_count,
            obstacle.change + code,
        )
    )
