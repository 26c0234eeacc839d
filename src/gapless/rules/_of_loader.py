"""The rules asked about a loader that was measured by itself."""

from __future__ import annotations

from gapless.model import Hit, Rule
from gapless.model.loading import Diagnosis
from gapless.rules import all_rules
from gapless.rules._loader import alone


def findings(made: Diagnosis) -> tuple[tuple[Rule, Hit], ...]:
    """What the rules find in what was measured, each with its rule, by code."""
    use = alone(made)
    return tuple((rule, hit) for rule in all_rules() for hit in rule.of_loader(use))
