"""Events that are one and the same to the user, gathered: same pattern, same line, same remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from gapless.analyze.run.loop import Loop, ReadSource, is_in_loop
from gapless.analyze.run.phases import Phases
from gapless.analyze.run.steps import Steps
from gapless.model import Recurrence, Session, Site, SourceLine, WaitRule, user_line
from gapless.rules import match_rule

_Description = tuple[WaitRule, SourceLine, str, bool]

UNKNOWN = SourceLine("<unknown>", 0)
"""Stands where no Python frame was there: a thread of a library's own."""


_LOOP_WORDS = "the loop"
"""What a remedy says that presumes one."""

Part = Literal["steps", "before", "after", "phase"]
"""Where in a run waits are: in its training steps, before the first, behind the last, or in a phase, such as
evaluation, that recurs between steps."""


@dataclass
class Group:
    """What becomes one finding: waits of one `part` of the run.

    `by_site` counts waits by the number of their site, `steps` by step. `trailing` are those of an
    iteration's code behind the last optimizer's step, and `outside` those of a part that is no step. `phase`
    is that of a group whose part is one. `parts` are the groups that were made one. `loop` tells apart the
    training loops that run side by side, where a line waits otherwise in one than in another.
    """

    rule: WaitRule
    line: SourceLine
    remedy: str
    backward: bool
    part: Part
    by_site: Counter[int] = field(default_factory=Counter)
    steps: Counter[int] = field(default_factory=Counter)
    trailing: int = 0
    outside: int = 0
    bytes: int = 0
    phase: Recurrence | None = None
    parts: tuple[Group, ...] = ()
    loop: int = -1

    @property
    def total(self) -> int:
        return self.steps.total() + self.trailing + self.outside


def group_events(session: Session, steps: Steps, loops: Sequence[Loop], phases: Phases) -> list[Group]:
    """The session's events in groups, in order of their first event; each wait is in one of them."""
    described = [_describe(site) for site in session.sites]
    in_loop = _sites_in_loop(session, steps, loops)
    extra = _extra_sites(session, steps, described)
    groups: dict[tuple[object, ...], Group] = {}
    for event in session.events:
        rule, line, remedy, backward = described[event.site]
        step = steps.of(event.tick)
        name = phases.name(event)
        part = "phase" if name else _part(step, steps, event.site in in_loop)
        loop = steps.loop_of(event, session.strands) if part == "steps" else -1
        key = (*_place_key(described[event.site]), part, name, event.site in extra and not name, loop)
        group = groups.get(key)
        if group is None:
            recurring = phases.recurrence(name) if name else None
            group = groups[key] = Group(rule, line, remedy, backward, part, phase=recurring, loop=loop)
        group.by_site[event.site] += event.waits
        group.bytes += event.bytes
        if part != "steps":
            group.outside += event.waits
        elif steps.seen and step == steps.seen:
            group.trailing += event.waits
        else:
            group.steps[step] += event.waits
    alike = _join_equal_loops(groups, steps) if steps.strands else groups.values()
    return [piece for group in alike for piece in (group, *_split_off_excess(group, steps)) if piece.total]


def _join_equal_loops(groups: Mapping[tuple[object, ...], Group], steps: Steps) -> list[Group]:
    """The groups with those made one that differ in nothing but the training loop that they are in."""
    by_key: dict[tuple[object, ...], Group] = {}
    for (*place, _), group in groups.items():
        steady = steps.steady_with(group.steps)
        key = (*place, sum(group.steps[step] for step in steady) / len(steady) if group.loop >= 0 else -1)
        first = by_key.setdefault(key, group)
        if first is not group:
            first.by_site += group.by_site
            first.steps += group.steps
            first.trailing += group.trailing
            first.bytes += group.bytes
            first.loop = -1
    return list(by_key.values())


def _part(step: int, steps: Steps, in_loop: bool) -> Part:
    if in_loop or not steps.seen or (step not in steps.firsts and step < steps.seen):
        return "steps"
    return "after" if step == steps.seen else "before"


def _split_off_excess(group: Group, steps: Steps) -> list[Group]:
    """What `group` waits beyond its usual in the first steps and behind the last one, taken out of it.

    A line that fills a cache in the first step and then waits once in each is told of for both.
    """
    steady = steps.steady
    usual = max((group.steps[step] for step in steady), default=0)
    if group.part != "steps" or not (usual or group.trailing):
        return []
    pieces = []
    first = (
        Counter({step: group.steps[step] - usual for step in set(range(steps.seen)).difference(steady)})
        if usual
        else Counter()
    )
    first = +first  # what is above the usual
    if first:
        group.steps -= first
        pieces.append(replace(group, steps=first, trailing=0, bytes=0))
    behind = group.trailing - max(group.steps.values(), default=0)
    if behind > 0:
        group.trailing -= behind
        pieces.append(replace(group, part="after", steps=Counter(), trailing=0, outside=behind, bytes=0))
    return pieces


def _place_key(described: _Description) -> tuple[object, ...]:
    rule, line, remedy, backward = described
    return rule.code, line.file, line.line, backward, remedy


def _extra_sites(session: Session, steps: Steps, described: Sequence[_Description]) -> set[int]:
    """Sites that wait in some steps, at a place where others wait the same number of times in every one.

    What happens in each step is one finding, and what the same line does besides, now and then, is another.
    Where the others make up for it, the line is reached on several ways in turn, and is one finding.
    """
    counts: dict[int, Counter[int]] = {}
    for event in session.events:
        if event.phase == "train":
            counts.setdefault(event.site, Counter())[steps.of(event.tick)] += event.waits
    always: dict[tuple[object, ...], Counter[int]] = {}
    sometimes: dict[int, tuple[object, ...]] = {}
    for site, own in counts.items():
        place, steady = _place_key(described[site]), steps.steady_with(own)
        if all(own[step] for step in steady):
            always.setdefault(place, Counter()).update(own)
        elif any(own[step] for step in steady):
            sometimes[site] = place
    even = {
        place for place, own in always.items() if len({own[step] for step in steps.steady_with(own)}) == 1
    }
    return {site for site, place in sometimes.items() if place in even}


def happens_once(group: Group, session: Session, steps: Steps, read: ReadSource) -> bool:
    """Whether `group` is in no loop, so that what is advised for one would be wrong.

    What steps and phases hold is in the training loop. Elsewhere the source tells; where it cannot be read,
    what comes before the first step or after the last is taken to be in none. A run without steps may be a
    piece of a loop: there only advice that names one asks for it.
    """
    if group.part == "phase" or (group.part == "steps" and steps.seen):
        return False
    sites = (session.sites[number] for number in group.by_site)
    looped = {is_in_loop(site.forward or site.stack, read) for site in sites}
    if True in looped:
        return False
    return bool(steps.seen) or (_LOOP_WORDS in group.remedy and looped == {False})


def _describe(site: Site) -> _Description:
    rule = match_rule(site)
    # The user's own backward code waits where it stands, and not on behalf of a line in forward.
    backward = site.in_backward and bool(site.forward) and site.line == user_line(site.forward)
    return rule, site.line or UNKNOWN, rule.remedy(site), backward


def _sites_in_loop(session: Session, steps: Steps, loops: Sequence[Loop]) -> set[int]:
    """Sites whose waits before the first step mark belong to the first step and not to the set-up.

    What waits again in a later step is no set-up, wherever it is.
    """
    outside = {*steps.firsts, steps.seen}
    again = {event.site for event in session.events if steps.of(event.tick) not in outside}
    held = {number for number, site in enumerate(session.sites) if loops and loops[0].holds(site.stack)}
    return again | held
