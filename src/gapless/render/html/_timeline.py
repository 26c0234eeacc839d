"""What the timeline of a page draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gapless.model import Profile, Report, Site
from gapless.model.lanes import Boxes, Lanes
from gapless.model.wording import CAUSES


def data(profile: Profile, report: Report, views: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The lanes, with the finding of each sync, and where to look for each finding."""
    memory = profile.memory
    return {
        "lanes": _lanes(profile.lanes),
        "span": [0, profile.span],
        "steps": {"start": profile.steps.start, "end": profile.steps.end, "names": profile.steps.names},
        "memory": {"time": memory.time, "allocated": memory.allocated, "reserved": memory.reserved},
        "findings": [
            {key: view[key] for key in ("id", "code", "name", "where", "start", "end")} for view in views
        ],
        "waits": {str(position): number for position, number in _waits(profile, report).items()},
        "causes": CAUSES,
    }


def _lanes(lanes: Lanes | None) -> dict[str, Any]:
    found = msgspec.structs.asdict(lanes or Lanes())
    found["lanes"] = [msgspec.structs.asdict(one) for one in found["lanes"]]
    found["windows"] = [
        {**msgspec.structs.asdict(one), "boxes": [_columns(row) for row in one.boxes]}
        for one in found["windows"]
    ]
    return found


def _columns(one: Boxes) -> dict[str, Any]:
    """The columns, each without what can be told from others: `count` only where a box stands for several,
    `busy` of those boxes alone, `launch` and `thread` of the single ones."""
    told: dict[str, Any] = {name: getattr(one, name) for name in ("lane", "row", "start", "length", "what")}
    single = [number == 1 for number in one.count]
    if not all(single):
        told["count"] = one.count
        told["busy"] = [busy for busy, alone in zip(one.busy, single, strict=True) if not alone]
    if one.launch:
        for name in ("launch", "thread"):
            told[name] = [value for value, alone in zip(getattr(one, name), single, strict=True) if alone]
    return told


def _waits(profile: Profile, report: Report) -> dict[int, int]:
    """For each cost that is a sync the position of the finding that tells of it, -1 where none does."""
    sites: dict[tuple[Site, str], int] = {}
    for number, one in enumerate(report.findings):
        for site in one.sites:
            sites.setdefault((site, "" if site.stack else one.place), number)
            sites.setdefault((site, ""), number)
    found: dict[int, int] = {}
    for position, cost in enumerate(profile.costs):
        if cost.cause == "wait":
            at = sites.get((cost.site, "" if cost.site.stack else cost.place))
            found[position] = sites.get((cost.site, ""), -1) if at is None else at
    return found
