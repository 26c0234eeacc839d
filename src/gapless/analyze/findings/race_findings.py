"""Findings about races, one for each pair of lines."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gapless.analyze.findings.finding import finding
from gapless.model import Finding, Frequency, Race, RaceRule
from gapless.model.wording import count
from gapless.rules import rules_of_kind


def findings(races: Sequence[Race]) -> list[Finding]:
    """Return what the rules find in `races`, the most frequent first."""
    pairs: dict[object, Race] = {}
    for race in races:
        key = (race.kind, _line_key(race.earlier.line), _line_key(race.later.line))
        earlier = pairs.get(key)
        pairs[key] = race if earlier is None else _merge_races(earlier, race)
    return [
        finding
        for race in sorted(pairs.values(), key=lambda race: -race.times)
        for finding in _race_findings(race)
    ]


def _line_key(line: object) -> tuple[object, object]:
    return getattr(line, "file", ""), getattr(line, "line", 0)


def _merge_races(first: Race, race: Race) -> Race:
    """Return `first` with the counts of `race`, which is between the same lines."""
    return msgspec.structs.replace(
        first,
        times=first.times + race.times,
        steps=max(first.steps, race.steps),
        bytes=max(first.bytes, race.bytes),
    )


def _race_findings(race: Race) -> list[Finding]:
    """Return a finding for each rule that applies to `race`."""
    results = []
    for rule in rules_of_kind(RaceRule):
        hit = rule.of_race(race)
        if hit is not None:
            met = f"met {count(race.times, 'time')}"
            evidence = (*hit.evidence, f"{met} in {count(race.steps, 'step')}" if race.steps > 1 else met)
            hit = msgspec.structs.replace(hit, evidence=evidence)
            timing = Frequency(when="no-steps", waits=0.0)
            results.append(finding(rule, hit, timing, place="not known", backward=False))
    return results
