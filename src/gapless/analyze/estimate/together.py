"""Choose what to price: findings by their sites, and all findings of a function or file together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gapless.model import Finding, SourceLine
from gapless.rules.superfluous import Superfluous

MAX_PLACES = 12
"""Functions and files that are priced, those with the most findings."""


class PlaceGroup(NamedTuple):
    """The keys of the findings of a file, or of a `function` in it, with the first of their lines."""

    file: str
    function: str
    keys: tuple[int, ...]
    line: SourceLine


@dataclass(frozen=True)
class ToPrice:
    """Findings to price: the numbers of each one's sites in `Session.sites`, what a remedy is known to remove
    with the waits of a site, and places whose findings are priced together."""

    sites: Mapping[int, Sequence[int]] = field(default_factory=dict)
    removed: Mapping[int, Superfluous] = field(default_factory=dict)
    places: Sequence[PlaceGroup] = ()


NOTHING = ToPrice()
"""Prices for nothing: the length of a step is wanted."""


def group_by_place(findings: Mapping[int, Finding]) -> list[PlaceGroup]:
    """Return the files and functions of the user's with several of these findings, files first.

    A function that has all findings of its file is left out.
    """
    lines = {
        key: finding.line
        for key, finding in findings.items()
        if finding.line is not None and finding.line.is_user
    }
    files = _group(lines, {key: (line.file, "") for key, line in lines.items()})
    functions = _group(lines, {key: (line.file, line.function) for key, line in lines.items()})
    whole = {group.file: group.keys for group in files}
    parts = [group for group in functions if group.function and group.keys != whole[group.file]]
    return sorted([*files, *parts], key=lambda group: -len(group.keys))[:MAX_PLACES]


def _group(lines: Mapping[int, SourceLine], places: Mapping[int, tuple[str, str]]) -> list[PlaceGroup]:
    """Return the places of several keys."""
    keys_of: dict[tuple[str, str], list[int]] = {}
    for key, place in places.items():
        keys_of.setdefault(place, []).append(key)
    return [
        PlaceGroup(*place, tuple(keys), min((lines[key] for key in keys), key=lambda line: line.line))
        for place, keys in keys_of.items()
        if len(keys) > 1
    ]
