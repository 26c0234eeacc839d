"""A comparison of two runs, or of two callables, to a `Report`."""

from __future__ import annotations

from gapless.analyze.findings.order import order
from gapless.analyze.tables import comparison_tables as comparison
from gapless.analyze.tables import proof_tables as proof
from gapless.analyze.verdicts import comparison_verdict as verdicts
from gapless.model import Report
from gapless.model.comparison import Comparison
from gapless.model.proof import Proof


def of_runs(made: Comparison) -> Report:
    """Its findings are those that the second run alone has: what a change has brought in."""
    new = order(row.after for row in made.findings if row.state == "new" and row.after is not None)
    return Report(
        verdict=verdicts.of_runs(made, new),
        kind="comparison",
        findings=new,
        tables=comparison.tables(made),
        notes=made.notes,
        comparison=made,
    )


def of_callables(made: Proof) -> Report:
    """Its findings are the waits that are left in the second callable."""
    left = made.costs[1].findings if made.costs else ()
    return Report(
        verdict=verdicts.of_callables(made),
        kind="proof",
        findings=order(left),
        tables=proof.tables(made),
        notes=made.notes,
        proof=made,
    )
