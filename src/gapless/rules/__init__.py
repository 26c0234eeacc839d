"""The rules, one file each; every file ``gapNNN_name.py`` in this folder is a rule."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TypeVar

from gapless.errors import UsageError
from gapless.model import Rule, Site, WaitRule

Kind = TypeVar("Kind", bound=Rule)


@cache
def all_rules() -> tuple[Rule, ...]:
    """Return every rule, sorted by code."""
    rules: list[Rule] = []
    for module_info in pkgutil.iter_modules(__path__):
        if not module_info.name.startswith("gap"):
            continue
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        rules += [
            value()
            for value in vars(module).values()
            if isinstance(value, type) and issubclass(value, Rule) and value.__module__ == module.__name__
        ]
    return tuple(sorted(rules, key=lambda rule: rule.code))


def rules_of_kind(kind: type[Kind]) -> tuple[Kind, ...]:
    """Return the rules of one kind, sorted by code.

    >>> from gapless.model import RanksRule
    >>> [rule.code for rule in rules_of_kind(RanksRule)]
    ['GAP602']
    """
    return tuple(rule for rule in all_rules() if isinstance(rule, kind))


@cache
def _wait_rules_by_priority() -> tuple[WaitRule, ...]:
    return tuple(sorted(rules_of_kind(WaitRule), key=lambda rule: (-rule.priority, rule.code)))


def rule(code: str) -> Rule:
    """Return the rule with this code or name.

    Raises:
        UsageError: there is none.
    """
    wanted = code.strip()
    for candidate in all_rules():
        if wanted.upper() == candidate.code or wanted.lower() == candidate.name:
            return candidate
    raise UsageError(f"no rule {code!r}: `gapless rule` lists them all")


def match_rule(site: Site, besides: str = "") -> WaitRule:
    """Return the rule for the sync at `site`: the first of the highest priority that matches, other than the
    one with the code `besides`."""
    for candidate in _wait_rules_by_priority():
        if candidate.code != besides and candidate.matches(site):
            return candidate
    raise LookupError(f"no rule matches {site.operator} ({site.mechanism}): GAP100 should")
