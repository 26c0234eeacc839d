"""Merge findings that one change mends: a line and its backward, several reads of one value."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from gapless.analyze.run.frequency import frequency
from gapless.analyze.run.group import Group
from gapless.analyze.run.steps import RunSteps
from gapless.model import Session, Site, SourceLine, Stack
from gapless.model.finding import Caller, Spot
from gapless.model.source import places
from gapless.rules._places import advise_for_lines, is_for_library
from gapless.rules.causes import remedy_by_cause

_MAX_CALLERS = 6
"""Call paths shown for a line; the rest is left out."""


def merge_groups(groups: Sequence[Group], session: Session, steps: RunSteps) -> list[Group]:
    """Merge the `groups` that one change mends; a merged group keeps them as its `parts`.

    They are of one rule, happen equally often and lie in one function, or wherever the rule says that one
    change reaches. What a library does in several of its lines below one line of the user's comes first.
    """
    by_change: dict[tuple[object, ...], list[Group]] = {}
    for group in _join_library_lines(groups, session, steps):
        first = session.sites[next(iter(group.by_site))]
        change: tuple[str, ...] | str = remedy_by_cause(first)[0] or group.rule.mended_with(first)
        if group.parts:
            change = group.line.file, group.line.function, group.remedy
        by_change.setdefault((group.rule.code, change, *timing_key(group, steps)), []).append(group)
    return [_mend_together(parts, session) if len(parts) > 1 else parts[0] for parts in by_change.values()]


def timing_key(group: Group, steps: RunSteps) -> tuple[object, ...]:
    """Return what must be equal for waits to happen equally often."""
    timing = frequency(group, steps)
    return timing.when, timing.every, timing.phase, group.loop


def _join_library_lines(groups: Sequence[Group], session: Session, steps: RunSteps) -> list[Group]:
    """Join the groups of one rule that are a library's lines below one line of the user's."""
    by_line: dict[tuple[object, ...], list[Group]] = {}
    for number, group in enumerate(groups):
        place: tuple[object, ...] = (number,)
        if is_for_library(group.remedy):
            place = group.rule.code, group.line, group.backward, *timing_key(group, steps)
        by_line.setdefault(place, []).append(group)
    return [_join_lines(parts, session) if len(parts) > 1 else parts[0] for parts in by_line.values()]


def _join_lines(parts: Sequence[Group], session: Session) -> Group:
    """Return one group for several lines of a library."""
    remedies = [(session.sites[next(iter(part.by_site))], part.remedy) for part in parts]
    return replace(join_groups(parts), remedy=advise_for_lines(remedies))


def _mend_together(parts: Sequence[Group], session: Session) -> Group:
    """Merge groups that one change mends; those in a row of lines get one remedy, where the rule has one."""
    merged = join_groups(parts)
    return replace(merged, remedy=_remedy_together(parts, session) or merged.remedy)


def name_callers(groups: Sequence[Group], session: Session) -> list[Group]:
    """Return `groups` with the caller in the remedy where one line needs different ones for its callers.

    A function that moves its argument to the CPU serves them all: what one of them can leave out another may
    need.
    """
    by_line: dict[tuple[object, ...], list[int]] = {}
    for number, group in enumerate(groups):
        by_line.setdefault((group.rule.code, group.line, group.backward), []).append(number)
    result = [*groups]
    for numbers in by_line.values():
        ways = [_direct_callers(groups[number], session) for number in numbers]
        apart = len(set().union(*ways)) == sum(map(len, ways))
        if len({groups[number].remedy for number in numbers}) > 1 and all(ways) and apart:
            for number, lines in zip(numbers, ways, strict=True):
                calls = f"the call{'s' if len(lines) > 1 else ''} at {places(lines, _file_name)}"
                remedy = f"for {calls}, not for the rest: {groups[number].remedy}"
                result[number] = replace(groups[number], remedy=remedy)
    return result


def _file_name(file: str) -> str:
    return SourceLine(file, 0).name


def _direct_callers(group: Group, session: Session) -> frozenset[SourceLine]:
    """Return the user's lines that call the function of the group's line."""
    return frozenset(stack[0] for number in group.by_site if (stack := _user_callers(session.sites[number])))


def join_groups(parts: Sequence[Group], leading: Group | None = None) -> Group:
    """Merge groups: the group `leading`, or else the line with most waits, forward before backward, gives
    rule, line and remedy."""
    lead = max(parts, key=lambda group: (group.total, not group.backward))
    forward = leading or next(
        (group for group in parts if group.line == lead.line and not group.backward), lead
    )
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
        parts=tuple(sorted(parts, key=lambda group: (group.line.file, group.line.line, group.backward))),
    )


def spots(group: Group, steps: RunSteps) -> tuple[Spot, ...]:
    """Return the lines of `group`, each with its own waits; empty if it is one line."""
    by_line: dict[tuple[SourceLine, bool], list[Group]] = {}
    for part in group.parts:
        by_line.setdefault((part.line, part.backward), []).append(part)
    if len(by_line) < 2:
        return ()
    return tuple(
        Spot(
            line=line,
            backward=backward,
            waits=sum(frequency(part, steps).waits for part in parts),
            remedy="; ".join(dict.fromkeys(part.remedy for part in parts if part.remedy != group.remedy)),
        )
        for (line, backward), parts in by_line.items()
    )


def _remedy_together(parts: Sequence[Group], session: Session) -> str:
    """Return the one change for `parts` in consecutive lines of one function; "" if there is none."""
    lines = sorted({part.line.line for part in parts})
    if len({(part.line.file, part.line.function) for part in parts}) > 1 or any(
        later - line > 1 for line, later in itertools.pairwise(lines)
    ):
        return ""
    ordered = sorted(parts, key=lambda part: part.line.line)
    sites = [session.sites[number] for part in ordered for number in part.by_site]
    return parts[0].rule.remedy_together(sites)


def callers(group: Group, session: Session, steps: RunSteps, waits: float) -> tuple[Caller, ...]:
    """Return the call paths to the lines of `group`, with their part of `waits`; empty for one path."""
    if len({_user_callers(session.sites[number]) for number in group.by_site}) < 2:
        return ()
    by_stack: Counter[Stack] = Counter()
    for number, times in (_steady_waits(group, session, steps) or group.by_site).items():
        by_stack[_user_callers(session.sites[number])] += times
    total = by_stack.total()
    if len(by_stack) < 2 or not total:
        return ()
    return tuple(Caller(stack, waits * times / total) for stack, times in by_stack.most_common(_MAX_CALLERS))


def _steady_waits(group: Group, session: Session, steps: RunSteps) -> Counter[int]:
    """Count the waits of the group's sites in steady steps; empty if it is outside steps."""
    waits: Counter[int] = Counter()
    if group.part == "steps":
        steady = frozenset(steps.steady)
        for event in session.events:
            if event.site in group.by_site and steps.of(event.tick) in steady:
                waits[event.site] += event.waits
    return waits


def _user_callers(site: Site) -> Stack:
    """Return the user's own calls around the line that waits, innermost first."""
    stack = site.forward if site.in_backward and site.forward else site.stack
    own: list[SourceLine] = [frame for frame in stack if frame.is_user]
    return tuple(own[1:])
