"""Join the findings of one cause: what moves values to the CPU, or a loop that reads elements one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from gapless.analyze.run.frequency import frequency
from gapless.analyze.run.group import Group
from gapless.analyze.run.merge import join_groups, timing_key
from gapless.analyze.run.steps import RunSteps
from gapless.model import Session, Site
from gapless.rules.causes import moved_value, remedy_by_cause

_AGREEING = 0.9
"""Share of a finding's waits that must have one cause for it to be joined with others."""
_JOINED = ("copied-back", "made", "numpy", "element")
"""Kinds of origins that one change at one line mends."""

_Key = tuple[str, str, int]


def join_causes(groups: Sequence[Group], session: Session, steps: RunSteps) -> list[Group]:
    """Join groups whose values come from one line, with the group of that line if it waits itself.

    They happen equally often. A joined group stands at the line of the cause.
    """
    keys = [_cause_of(group, session.sites) for group in groups]
    by_cause: dict[tuple[object, ...], list[int]] = {}
    for number, (group, key) in enumerate(zip(groups, keys, strict=True)):
        if key is not None:
            by_cause.setdefault((key, *timing_key(group, steps)), []).append(number)
    copies = {
        (("copied-back", group.line.file, group.line.line), *timing_key(group, steps)): number
        for number, group in enumerate(groups)
        if keys[number] is None and session.sites[next(iter(group.by_site))].mechanism == "d2h"
    }
    joined: dict[int, Group] = {}
    for cause, members in by_cause.items():
        parent = copies.get(cause)
        if parent is not None or len(members) > 1 or groups[members[0]].parts:
            followers = [groups[number] for number in members]
            at = parent if parent is not None else members[0]
            joined[at] = _join(followers, groups[at] if parent is not None else None, session.sites, steps)
            joined.update(
                {number: replace(groups[number], by_site=Counter()) for number in members if number != at}
            )
    result = [joined.get(number, group) for number, group in enumerate(groups)]
    return [group for group in result if group.by_site]


def _cause_of(group: Group, sites: Sequence[Site]) -> _Key | None:
    """Return the kind and line of the cause that nearly all waits of a group have."""
    counts: Counter[_Key] = Counter()
    for number, waits in group.by_site.items():
        cause = sites[number].cause
        if cause is not None and cause.line is not None and cause.kind in _JOINED:
            counts[cause.kind, cause.line.file, cause.line.line] += waits
        elif walked := _walked_by_loop(sites[number]):
            counts[walked] += waits
    for key, waits in counts.most_common(1):
        if waits >= _AGREEING * group.by_site.total():
            return key
    return None


def _walked_by_loop(site: Site) -> _Key | None:
    """Return what the tensors have in common whose rows or elements a loop reads one by one: one copy of them
    serves each line of the loop that reads."""
    element = next((use for use in site.uses if use.kind == "element"), None)
    if element is None or site.line is None:
        return None
    return element.text, f"{site.line.file} {site.line.function}", 0


def _join(followers: Sequence[Group], parent: Group | None, sites: Sequence[Site], steps: RunSteps) -> Group:
    """Return one group for a cause, at its line."""
    lead = max(followers, key=lambda group: (group.total, not group.backward))
    leading = [sites[number] for number, _ in lead.by_site.most_common()]
    site = next((site for site in leading if site.cause is not None), leading[0])
    cause = site.cause
    line = cause.line if cause is not None and cause.line is not None else lead.line
    parts = [
        part
        for group in (*followers, *((parent,) if parent is not None else ()))
        for part in group.parts or (group,)
    ]
    remedy, change = remedy_by_cause(site, len({part.line for part in parts}))
    whole = join_groups(parts, parent or replace(lead, line=line, backward=False))
    if parent is not None:
        following = sum(frequency(group, steps).waits for group in followers)
        total = frequency(whole, steps).waits
        name = moved_value(line)
        remedy = (
            f"keep {name or 'the values'} on the GPU: this copy causes {following:g} of the {total:g} syncs "
            "here, which go with it"
        )
        change = f"keep {name or 'the values'} on the GPU"
    return replace(whole, remedy=remedy or lead.remedy, change=change)
