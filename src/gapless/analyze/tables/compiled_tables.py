"""What torch.compile makes of what a run compiled, a row for each callable."""

from __future__ import annotations

from gapless.analyze.phrases.speed import ranged
from gapless.model import Compiled, Report, Table
from gapless.model.table import Row, table
from gapless.model.wording import number


def compiled(report: Report) -> Table | None:
    """Graphs, breaks and recompilations; None where nothing was compiled."""
    if not report.compiled:
        return None
    rows = [
        Row((
            _name(one),
            number(one.calls),
            number(one.graphs),
            number(one.broken),
            number(one.again),
            number(one.shapes),
            one.line or "",
        ))
        for one in report.compiled
    ]  # fmt: skip
    return table(
        "Compiled code (compiled again after the run, as for the GPU)",
        "calls | graphs | breaks | recompiled | sizes | <at",
        rows,
        shown=4,
        notes=("sizes: counts each graph once for each set of input sizes it ran with",),
    )


def what_if(report: Report) -> Table | None:
    """A step as it is and as it would be if it were compiled; None where that was not asked."""
    one = report.estimate
    if one is None or one.compiling is None:
        return None
    from gapless.analyze.estimate.fusion import ASSUMED  # which comes with the replay

    then = one.compiling
    rows = [
        Row(("kernels", number(round(one.launches)), number(round(then.launches)))),
        Row(("a step", ranged(one.step), ranged(then.step))),
    ]
    saved = f"saves {ranged(then.saved)} per step"
    return table(
        "If the forward and the backward pass were compiled",
        "now | then",
        rows,
        notes=(f"{saved}, if a single graph holds both", f"assumed: {ASSUMED}"),
        where="before",
    )


def _name(compiled: Compiled) -> str:
    """``Net, fullgraph=True``."""
    state = (
        ("not compiled",) if compiled.failed else ("runs eagerly after the limit",) if compiled.limit else ()
    )
    return ", ".join((compiled.name, *compiled.options, *state))
