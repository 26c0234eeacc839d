"""Findings that one change mends are one: a line and its backward, several reads of one value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from gapless.analyze.run.frequency import frequency
from gapless.analyze.run.group import Group
from gapless.analyze.run.steps import Steps
from gapless.model import Session, Site, SourceLine, Stack
from gapless.model.finding import Caller, Spot

_CALLERS = 6
"""Ways on which a line is reached that are told apart; of more the rest is left out."""


def merged(groups: Sequence[Group], session: Session, steps: Steps) -> list[Group]:
    """`groups` with those that one change mends made one, which keeps them as its `parts`.

    They are of one rule, happen equally often and lie in one function, or wherever else their rule says that
    one change reaches.
    """
    found: dict[tuple[object, ...], list[Group]] = {}
    for group in groups:
        often = frequency(group, steps)
        first = session.sites[next(iter(group.by_site))]
        key = (
            group.rule.code,
            group.rule.mended_with(first),
            often.when,
            often.every,
            often.phase,
            group.loop,
        )
        found.setdefault(key, []).append(group)
    return [_one(parts) if len(parts) > 1 else parts[0] for parts in found.values()]


def _one(parts: Sequence[Group]) -> Group:
    """The groups as one; the line of the one with most waits leads it, forward before backward."""
    lead = max(parts, key=lambda one: (one.total, not one.backward))
    forward = next((one for one in parts if one.line == lead.line and not one.backward), lead)
    by_site: Counter[int] = Counter()
    steps: Counter[int] = Counter()
    for part in parts:
        by_site.update(part.by_site)
        steps.update(part.steps)
    return replace(
        forward,
        by_site=by_site,
        steps=steps,
        trailing=sum(part.trailing for part in parts),
        outside=sum(part.outside for part in parts),
        bytes=sum(part.bytes for part in parts),
        parts=tuple(sorted(parts, key=lambda one: (one.line.file, one.line.line, one.backward))),
    )


def spots(group: Group, steps: Steps) -> tuple[Spot, ...]:
    """The lines that `group` is about, each with its own waits; empty where it is one."""
    return tuple(
        Spot(line=part.line, backward=part.backward, waits=frequency(part, steps).waits)
        for part in group.parts
    )


def callers(group: Group, session: Session, steps: Steps, waits: float) -> tuple[Caller, ...]:
    """The ways on which the lines of `group` are reached, by their part in its `waits`; empty for one way."""
    if len({_above(session.sites[number]) for number in group.by_site}) < 2:
        return ()
    by_stack: Counter[Stack] = Counter()
    for number, times in (_in_steady_steps(group, session, steps) or group.by_site).items():
        by_stack[_above(session.sites[number])] += times
    total = by_stack.total()
    if len(by_stack) < 2 or not total:
        return ()
    return tuple(Caller(stack, waits * times / total) for stack, times in by_stack.most_common(_CALLERS))


def _in_steady_steps(group: Group, session: Session, steps: Steps) -> Counter[int]:
    """The waits of the sites of `group` that its frequency is about; none where it is not about steps."""
    found: Counter[int] = Counter()
    if group.part == "steps":
        steady = frozenset(steps.steady)
        for event in session.events:
            if event.site in group.by_site and steps.of(event.tick) in steady:
                found[event.site] += event.waits
    return found


def _above(site: Site) -> Stack:
    """The user's own calls around the line that waits, innermost first."""
    stack = site.forward if site.in_backward and site.forward else site.stack
    own: list[SourceLine] = [frame for frame in stack if frame.is_user]
    return tuple(own[1:])
