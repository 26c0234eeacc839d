"""Events that are one and the same to the user, gathered: same pattern, same line, same remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from gapless.analyze.loop import Loop
from gapless.analyze.steps import Steps
from gapless.model import Phase, Rule, Session, Site, SourceLine, user_line
from gapless.rules import match

_Described = tuple[Rule, SourceLine, str, bool]

UNKNOWN = SourceLine("<unknown>", 0)
"""Stands where no Python frame was there: a thread of a library's own."""


@dataclass
class Group:
    """What becomes one finding.

    `by_site` counts waits by the number of their site, `steps` by step; `before` and `after` are those
    that no step holds.
    """

    rule: Rule
    line: SourceLine
    remedy: str
    backward: bool
    phase: Phase
    by_site: Counter[int] = field(default_factory=Counter)
    steps: Counter[int] = field(default_factory=Counter)
    before: int = 0
    after: int = 0
    bytes: int = 0

    @property
    def total(self) -> int:
        return self.by_site.total()


def group_events(session: Session, steps: Steps, loop: Loop | None) -> list[Group]:
    """The session's events in groups, in order of their first event."""
    described = [_describe(site) for site in session.sites]
    in_loop = _sites_in_loop(session, steps, loop)
    extra = _extra_sites(session, steps, described)
    groups: dict[tuple[object, ...], Group] = {}
    for event in session.events:
        rule, line, remedy, backward = described[event.site]
        key = (*_place(described[event.site]), event.phase, event.site in extra)
        group = groups.get(key)
        if group is None:
            group = groups[key] = Group(rule, line, remedy, backward, event.phase)
        group.by_site[event.site] += event.waits
        group.bytes += event.bytes
        step = steps.of(event.tick)
        if step == steps.seen:
            group.after += event.waits
        elif step == 0 and event.site not in in_loop:
            group.before += event.waits
        else:
            group.steps[step] += event.waits
    return list(groups.values())


def _place(described: _Described) -> tuple[object, ...]:
    rule, line, remedy, backward = described
    return rule.code, line.file, line.line, backward, remedy


def _extra_sites(session: Session, steps: Steps, described: Sequence[_Described]) -> set[int]:
    """Sites that wait in some steps, at a place where others wait the same number of times in every one.

    What happens in each step is one finding, and what the same line does besides, now and then, is another.
    Where the others make up for it, the line is reached on several ways in turn, and is one finding.
    """
    steady = steps.steady
    counts: dict[int, Counter[int]] = {}
    for event in session.events:
        if event.phase == "train":
            counts.setdefault(event.site, Counter())[steps.of(event.tick)] += event.waits
    always: dict[tuple[object, ...], Counter[int]] = {}
    sometimes: dict[int, tuple[object, ...]] = {}
    for site, own in counts.items():
        place = _place(described[site])
        if all(own[step] for step in steady):
            always.setdefault(place, Counter()).update(own)
        elif any(own[step] for step in steady):
            sometimes[site] = place
    even = {place for place, own in always.items() if len({own[step] for step in steady}) == 1}
    return {site for site, place in sometimes.items() if place in even}


def _describe(site: Site) -> _Described:
    rule = match(site)
    # The user's own backward code waits where it stands, and not on behalf of a line in forward.
    backward = site.in_backward and bool(site.forward) and site.line == user_line(site.forward)
    return rule, site.line or UNKNOWN, rule.remedy(site), backward


def _sites_in_loop(session: Session, steps: Steps, loop: Loop | None) -> set[int]:
    """Sites whose waits before the first step mark belong to the first step and not to the set-up.

    Where no loop was found, a site that waits again in a later step is taken to be in it.
    """
    if loop is not None:
        return {number for number, site in enumerate(session.sites) if loop.holds(site.stack)}
    return {event.site for event in session.events if 0 < steps.of(event.tick) < steps.seen}
