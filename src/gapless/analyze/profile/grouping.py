"""Which waits of a profile are one finding: one rule, one place, one remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gapless.model import Cost, Rule, Site, SourceLine
from gapless.rules import match_rule
from gapless.rules._places import deciding_frame

NOWHERE = 0.001
"""Idleness below this share of the steps is next to none."""
NEARLY = 0.8
"""From this part on a wait is called one for a device at work."""


def long(idle: int, blocked: int, total: int) -> bool:
    """Whether the CPU stops for far longer than the GPU idles for it, and that matters in `total`."""
    return blocked > 20 * idle and blocked >= 10 * NOWHERE * total > 0


def unseen(idle: int, blocked: int, working: int, total: int) -> bool:
    """Whether the CPU waits for something that the profile does not show: what that costs is unknown."""
    return long(idle, blocked, total) and working < NEARLY * blocked


@dataclass
class WaitGroup:
    """Waits that are one finding; `costs` are positions in `Profile.costs`."""

    rule: Rule
    remedy: str
    line: SourceLine | None
    place: str
    backward: bool
    costs: list[int] = field(default_factory=list)


def wait_groups(costs: Sequence[Cost]) -> list[WaitGroup]:
    """The waits among `costs`, gathered."""
    groups: dict[tuple[object, ...], WaitGroup] = {}
    for position, cost in enumerate(costs):
        if cost.cause != "wait":
            continue
        group = _group(cost)
        decides = deciding_frame(cost.site)
        key = (group.rule.code, group.line, decides, group.place, group.backward, group.remedy)
        groups.setdefault(key, group).costs.append(position)
    return list(groups.values())


def _group(cost: Cost) -> WaitGroup:
    site = cost.site
    if not site.operator:  # the rest of many places
        return WaitGroup(match_rule(Site(operator="", mechanism="values")), "", None, cost.place, False)
    rule = match_rule(site)
    backward = site.in_backward and bool(site.forward)
    line = site.line
    if line is not None and not line.is_user:
        line = deciding_frame(site) or line  # nobody's own code is below: the library's line that decides
    return WaitGroup(rule, rule.remedy(site), line, "" if line else cost.place or site.operator, backward)
