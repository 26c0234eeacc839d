"""The verdict on two runs, or two callables, side by side."""

from __future__ import annotations

from gapless.analyze.verdicts.changes import changes
from gapless.model import Finding, Verdict
from gapless.model.comparison import Comparison
from gapless.model.proof import Proof
from gapless.model.verdict import Level


def of_runs(comparison: Comparison, new: tuple[Finding, ...]) -> Verdict:
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


def of_callables(proof: Proof) -> Verdict:
    """Return the verdict on a proof."""
    slower = proof.time is not None and proof.time.faster == "before"
    level: Level = "fine" if proof.same and not slower else "act" if proof.same else "failed"
    return Verdict(sentence=proof.verdict, level=level)
