"""Tables of what torch.compile made of a run's callables."""

from __future__ import annotations

from gapless.analyze.phrases.speed import time_range
from gapless.model import Compiled, Report, Table
from gapless.model.table import Row, table
from gapless.model.wording import number


def compiled_table(report: Report) -> Table | None:
    """Return graphs, breaks and recompilations by callable; None if nothing was compiled."""
    if not report.compiled:
        return None
    rows = [
        Row((
            _name(code),
            number(code.calls),
            number(code.graphs),
            number(code.broken),
            number(code.again),
            number(code.shapes),
            code.line or "",
        ))
        for code in report.compiled
    ]  # fmt: skip
    return table(
        "Compiled code (compiled again after the run, as for the GPU)",
        "calls | graphs | breaks | recompiled | sizes | <at",
        rows,
        shown=4,
        notes=("sizes: counts each graph once for each set of input sizes it ran with",),
    )


def what_if_table(report: Report) -> Table | None:
    """Compare a step with a compiled one; None if that was not estimated."""
    estimate = report.estimate
    if estimate is None or estimate.compiling is None:
        return None
    from gapless.analyze.estimate.fusion import ASSUMPTION  # loads the replay

    then = estimate.compiling
    rows = [
        Row(("kernels", number(round(estimate.launches)), number(round(then.launches)))),
        Row(("a step", time_range(estimate.step), time_range(then.step))),
    ]
    saved = f"saves {time_range(then.saved)} per step"
    return table(
        "If the forward and the backward pass were compiled",
        "now | then",
        rows,
        notes=(f"{saved}, if a single graph holds both", f"assumed: {ASSUMPTION}"),
        where="before",
    )


def _name(compiled: Compiled) -> str:
    """Return the callable's name with its state and options: ``Net, fullgraph=True``."""
    state = (
        ("not compiled",) if compiled.failed else ("runs eagerly after the limit",) if compiled.limit else ()
    )
    return ", ".join((compiled.name, *compiled.options, *state))
