"""Findings about how optimizers go through their parameters."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.analyze.findings.finding import finding
from gapless.model import Finding, Frequency, OptimizerRule
from gapless.model.estimate import Estimate
from gapless.model.profile import Price
from gapless.rules import rules_of_kind


def findings(estimate: Estimate | None) -> Iterator[Finding]:
    """Yield what the rules find in the optimizers of an estimated step, with what a change would save."""
    if estimate is None or estimate.reasons:
        return
    for use in estimate.optimizers:
        for rule in rules_of_kind(OptimizerRule):
            for hit in rule.of_optimizer(use):
                yield finding(
                    rule,
                    hit,
                    Frequency(when="every-step", waits=0.0),
                    place=f"the optimizer {use.name}",
                    price=Price.estimate(use.joined.saved, removal="free", of=use.joined.before)
                    if use.joined is not None
                    else None,
                )
