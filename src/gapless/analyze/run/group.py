"""Group the events that are the same to the user: same pattern, same line, same remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from gapless.analyze.run.loop import Loop, ReadSource, is_in_loop
from gapless.analyze.run.phases import Phases
from gapless.analyze.run.steps import RunSteps
from gapless.model import Recurrence, Session, Site, SourceLine, WaitRule, user_line
from gapless.rules import match_rule
from gapless.rules.causes import remedy_by_cause

_Description = tuple[WaitRule, SourceLine, str, bool]

UNKNOWN = SourceLine("<unknown>", 0)
"""The line of events without a Python frame: a thread of a library."""


_LOOP_WORDS = "the loop"
"""Words in a remedy that assumes a loop."""

RunPart = Literal["steps", "before", "after", "phase"]
"""Where in a run waits are: in training steps, before the first, after the last, or in a recurring phase."""


@dataclass
class Group:
    """The waits of one `part` of the run that become one finding.

    `by_site` counts waits by site number, `steps` by step. `trailing` counts waits of an iteration's code
    after the last optimizer step, `outside` those of a part outside steps. `phase` is set if the part is a
    phase. `parts` are the groups merged into this one. `loop` numbers the training loop, if several run side
    by side and the line waits differently in each.
    """

    rule: WaitRule
    line: SourceLine
    remedy: str
    backward: bool
    part: RunPart
    by_site: Counter[int] = field(default_factory=Counter)
    steps: Counter[int] = field(default_factory=Counter)
    trailing: int = 0
    outside: int = 0
    bytes: int = 0
    phase: Recurrence | None = None
    parts: tuple[Group, ...] = ()
    loop: int = -1
    change: str = ""

    @property
    def total(self) -> int:
        return self.steps.total() + self.trailing + self.outside


def group_events(session: Session, steps: RunSteps, loops: Sequence[Loop], phases: Phases) -> list[Group]:
    """Return the session's events in groups, by first event; each wait is in exactly one group."""
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


def _join_equal_loops(groups: Mapping[tuple[object, ...], Group], steps: RunSteps) -> list[Group]:
    """Merge the groups that differ only in their training loop."""
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


def _part(step: int, steps: RunSteps, in_loop: bool) -> RunPart:
    """Return the part of the run that an event of `step` is in; `in_loop` if its site is in the training
    loop."""
    if in_loop or not steps.seen or (step not in steps.firsts and step < steps.seen):
        return "steps"
    return "after" if step == steps.seen else "before"


def _split_off_excess(group: Group, steps: RunSteps) -> list[Group]:
    """Split off what `group` waits beyond its usual in the first steps and after the last one.

    A line that fills a cache in the first step and then waits once per step becomes two findings.
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
    first = +first  # drops steps that do not exceed the usual
    if first:
        group.steps -= first
        pieces.append(replace(group, steps=first, trailing=0, bytes=0))
    behind = group.trailing - max(group.steps.values(), default=0)
    if behind > 0:
        group.trailing -= behind
        pieces.append(replace(group, part="after", steps=Counter(), trailing=0, outside=behind, bytes=0))
    return pieces


def _place_key(described: _Description) -> tuple[object, ...]:
    """Return what must be equal for two sites to be one finding."""
    rule, line, remedy, backward = described
    return rule.code, line.file, line.line, backward, remedy


def _extra_sites(session: Session, steps: RunSteps, described: Sequence[_Description]) -> set[int]:
    """Return sites that wait in some steps, where other sites of the line wait equally often in every step.

    The waits of every step are one finding, the occasional ones another. If the sites take turns, the line is
    reached in several ways and is one finding.
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


def happens_once(group: Group, session: Session, steps: RunSteps, read: ReadSource) -> bool:
    """Whether `group` is outside all loops, so that advice for a loop would be wrong.

    Steps and phases are inside the training loop. Elsewhere the source tells; if it cannot be read, what
    comes before the first step or after the last is taken to be outside. A run without steps may be one pass
    of a loop: there, only advice that mentions a loop needs one.
    """
    if group.part == "phase" or (group.part == "steps" and steps.seen):
        return False
    sites = (session.sites[number] for number in group.by_site)
    looped = {is_in_loop(site.forward or site.stack, read) for site in sites}
    if True in looped:
        return False
    return bool(steps.seen) or (_LOOP_WORDS in group.remedy and looped == {False})


def _describe(site: Site) -> _Description:
    """Return rule, line, remedy, and whether `site` waits in the backward of its line."""
    rule = match_rule(site)
    # The user's own backward code waits at its own line, not at a line of the forward pass.
    backward = site.in_backward and bool(site.forward) and site.line == user_line(site.forward)
    return rule, site.line or UNKNOWN, remedy_by_cause(site)[0] or rule.remedy(site), backward


def _sites_in_loop(session: Session, steps: RunSteps, loops: Sequence[Loop]) -> set[int]:
    """Return sites whose waits before the first step mark belong to the first step, not to set-up.

    What waits again in a later step is not set-up, wherever it is.
    """
    outside = {*steps.firsts, steps.seen}
    again = {event.site for event in session.events if steps.of(event.tick) not in outside}
    in_loop = {number for number, site in enumerate(session.sites) if loops and loops[0].holds(site.stack)}
    return again | in_loop
