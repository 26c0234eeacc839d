"""Turn a comparison of two runs, or of two callables, into a `Report`."""

from __future__ import annotations

from gapless.analyze.findings.order import order
from gapless.analyze.tables import comparison_tables as comparison
from gapless.analyze.tables import proof_tables as proof
from gapless.analyze.verdicts import comparison_verdict as verdicts
from gapless.model import Report
from gapless.model.comparison import Comparison
from gapless.model.proof import Proof


def report_comparison(comparison_: Comparison) -> Report:
    """Build the report of a comparison; its findings are those that only the second run has."""
    new = order(row.after for row in comparison_.findings if row.state == "new" and row.after is not None)
    return Report(
        verdict=verdicts.of_runs(comparison_, new),
        kind="comparison",
        findings=new,
        tables=comparison.tables(comparison_),
        notes=comparison_.notes,
        comparison=comparison_,
    )


def report_proof(proof_: Proof) -> Report:
    """Build the report of a proof; its findings are the waits left in the second callable."""
    left = proof_.costs[1].findings if proof_.costs else ()
    return Report(
        verdict=verdicts.of_callables(proof_),
        kind="proof",
        findings=order(left),
        tables=proof.tables(proof_),
        notes=proof_.notes,
        proof=proof_,
    )
