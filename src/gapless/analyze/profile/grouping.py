"""Group waits of a profile into findings: one rule, one place, one remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gapless.model import Cost, Rule, Site, SourceLine
from gapless.rules import match_rule
from gapless.rules._places import deciding_frame

MIN_IDLE_SHARE = 0.001
"""Idleness below this share of the steps is negligible."""
MIN_WORKING_SHARE = 0.8
"""From this share of working time on, a wait counts as one for a busy device."""


def is_long_wait(idle: int, blocked: int, total: int) -> bool:
    """Whether the CPU is blocked far longer than the GPU idles for it, and for a notable part of `total`."""
    return blocked > 20 * idle and blocked >= 10 * MIN_IDLE_SHARE * total > 0


def waits_for_unrecorded(idle: int, blocked: int, working: int, total: int) -> bool:
    """Whether the CPU waits for something that the profile does not show, so that the cost is unknown."""
    return is_long_wait(idle, blocked, total) and working < MIN_WORKING_SHARE * blocked


@dataclass
class WaitGroup:
    """Waits that form one finding; `costs` are positions in `Profile.costs`."""

    rule: Rule
    remedy: str
    line: SourceLine | None
    place: str
    backward: bool
    costs: list[int] = field(default_factory=list)


def group_waits(costs: Sequence[Cost]) -> list[WaitGroup]:
    """Group the waits among `costs` by rule, place and remedy."""
    groups: dict[tuple[object, ...], WaitGroup] = {}
    for position, cost in enumerate(costs):
        if cost.cause != "wait":
            continue
        group = _new_group(cost)
        decides = deciding_frame(cost.site)
        key = (group.rule.code, group.line, decides, group.place, group.backward, group.remedy)
        groups.setdefault(key, group).costs.append(position)
    return list(groups.values())


def _new_group(cost: Cost) -> WaitGroup:
    site = cost.site
    if not site.operator:  # the sum of many small places
        return WaitGroup(match_rule(Site(operator="", mechanism="values")), "", None, cost.place, False)
    rule = match_rule(site)
    backward = site.in_backward and bool(site.forward)
    line = site.line
    if line is not None and not line.is_user:
        line = deciding_frame(site) or line  # only library code is on the stack: take the line that decides
    return WaitGroup(rule, rule.remedy(site), line, "" if line else cost.place or site.operator, backward)
