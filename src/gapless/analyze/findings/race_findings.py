"""Races to findings: one for each pair of lines."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gapless.analyze.findings.finding import finding
from gapless.model import Finding, Frequency, Race, RaceRule
from gapless.model.wording import count
from gapless.rules import rules_of_kind


def findings(races: Sequence[Race]) -> list[Finding]:
    """What the rules say of `races`, those met most often first."""
    pairs: dict[object, Race] = {}
    for race in races:
        key = (race.kind, _place(race.earlier.line), _place(race.later.line))
        known = pairs.get(key)
        pairs[key] = race if known is None else _both(known, race)
    return [found for race in sorted(pairs.values(), key=lambda one: -one.times) for found in _of_race(race)]


def _place(line: object) -> tuple[object, object]:
    return getattr(line, "file", ""), getattr(line, "line", 0)


def _both(known: Race, race: Race) -> Race:
    """Two races of the same pair of lines: the first, with what the second adds."""
    return msgspec.structs.replace(
        known,
        times=known.times + race.times,
        steps=max(known.steps, race.steps),
        bytes=max(known.bytes, race.bytes),
    )


def _of_race(race: Race) -> list[Finding]:
    found = []
    for rule in rules_of_kind(RaceRule):
        hit = rule.of_race(race)
        if hit is not None:
            met = f"met {count(race.times, 'time')}"
            told = (*hit.evidence, f"{met} in {count(race.steps, 'step')}" if race.steps > 1 else met)
            hit = msgspec.structs.replace(hit, evidence=told)
            often = Frequency(when="no-steps", waits=0.0)
            found.append(finding(rule, hit, often, place="not known", backward=False))
    return found
