"""Turn a comparison of two runs, or of two callables, into a `Report`."""

from __future__ import annotations

from gapless.analyze.findings.order import order
from gapless.analyze.tables import comparison_tables as comparison
from gapless.analyze.tables import proof_tables as proof
from gapless.analyze.verdicts.changes import changes
from gapless.model import Finding, Report, Verdict
from gapless.model.comparison import Comparison
from gapless.model.proof import Proof
from gapless.model.verdict import Level


def report_comparison(comparison_: Comparison) -> Report:
    """Build the report of a comparison; its findings are those that only the second run has."""
    new = order(row.after for row in comparison_.findings if row.state == "new" and row.after is not None)
    return Report(
        verdict=_runs_verdict(comparison_, new),
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
        verdict=_callables_verdict(proof_),
        kind="proof",
        findings=order(left),
        tables=proof.tables(proof_),
        notes=proof_.notes,
        proof=proof_,
    )


def _runs_verdict(comparison: Comparison, new: tuple[Finding, ...]) -> Verdict:
    """Return the verdict on a comparison; `new` are findings that only the second run has."""
    if comparison.incomplete:
        reason = (
            comparison.idle is not None
            and "What was recorded is compared below, but says little about the change"
        )
        return Verdict(sentence=comparison.sentence, level="unknown", why=(reason,) if reason else ())
    worse = bool(new) or (comparison.length.change > 0 and not comparison.within_spread)
    waits = [
        (position, finding.frequency.per_step)
        for position, finding in enumerate(new)
        if finding.frequency.per_step
    ]
    return Verdict(
        sentence=comparison.sentence,
        level="act" if worse else "fine",
        do_first=changes(new, waits, comparison.length.after, unit="syncs")
        if comparison.of == "sessions"
        else (),
        why=tuple(f"New: {finding.code} {finding.name}" for finding in new[:2]),
    )


def _callables_verdict(proof: Proof) -> Verdict:
    """Return the verdict on a proof."""
    slower = proof.time is not None and proof.time.faster == "before"
    level: Level = "fine" if proof.same and not slower else "act" if proof.same else "failed"
    return Verdict(sentence=proof.verdict, level=level)
