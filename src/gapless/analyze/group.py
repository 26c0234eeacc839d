"""Events that are one and the same to the user, gathered: same pattern, same line, same remedy."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from gapless.analyze.loop import Loop
from gapless.analyze.steps import Steps
from gapless.model import Phase, Rule, Session, Site, SourceLine, user_line
from gapless.rules import match

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
    rhythms = _rhythms(session, steps)
    groups: dict[tuple[object, ...], Group] = {}
    for event in session.events:
        rule, line, remedy, backward = described[event.site]
        key = (rule.code, line.file, line.line, backward, remedy, event.phase, rhythms[event.site])
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


def _rhythms(session: Session, steps: Steps) -> list[str]:
    """Of each site whether it alone waits in every steady step, in some of them, or in none.

    What happens in each step is one finding, what the same line does now and then is another. Sites that
    wait in some steps stay together: a line reached on several ways waits in turn, now here, now there.
    """
    hit: list[set[int]] = [set() for _ in session.sites]
    for event in session.events:
        if event.phase == "train":
            hit[event.site].add(steps.of(event.tick))
    steady = set(steps.steady)

    def rhythm(own: set[int]) -> str:
        if not own & steady:
            return "none"
        return "every step" if steady <= own else "some steps"

    return [rhythm(own) for own in hit]


def _describe(site: Site) -> tuple[Rule, SourceLine, str, bool]:
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
