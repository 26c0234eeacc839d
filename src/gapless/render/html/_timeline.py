"""Prepare the data of the page's timeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gapless.model import Profile, Report, Site
from gapless.model.lanes import Boxes, Lanes
from gapless.model.wording import CAUSES


def data(profile: Profile, report: Report, views: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the timeline's script draws: lanes, steps, memory, findings, and each wait's finding."""
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
    fields = msgspec.structs.asdict(lanes or Lanes())
    fields["lanes"] = [msgspec.structs.asdict(lane) for lane in fields["lanes"]]
    fields["windows"] = [
        {**msgspec.structs.asdict(window), "boxes": [_columns(row) for row in window.boxes]}
        for window in fields["windows"]
    ]
    return fields


def _columns(boxes: Boxes) -> dict[str, Any]:
    """Return the columns without redundant values: `count` only if some box merges several spans, `busy` of
    those boxes only, `launch` and `thread` of single spans only."""
    columns: dict[str, Any] = {
        name: getattr(boxes, name) for name in ("lane", "row", "start", "length", "what")
    }
    single = [number == 1 for number in boxes.count]
    if not all(single):
        columns["count"] = boxes.count
        columns["busy"] = [busy for busy, alone in zip(boxes.busy, single, strict=True) if not alone]
    if boxes.launch:
        for name in ("launch", "thread"):
            columns[name] = [
                value for value, alone in zip(getattr(boxes, name), single, strict=True) if alone
            ]
    return columns


def _waits(profile: Profile, report: Report) -> dict[int, int]:
    """Return for each cost that is a wait the number of its finding, -1 if it has none."""
    sites: dict[tuple[Site, str], int] = {}
    for number, finding in enumerate(report.findings):
        for site in finding.sites:
            sites.setdefault((site, "" if site.stack else finding.place), number)
            sites.setdefault((site, ""), number)
    positions: dict[int, int] = {}
    for position, cost in enumerate(profile.costs):
        if cost.cause == "wait":
            at = sites.get((cost.site, "" if cost.site.stack else cost.place))
            positions[position] = sites.get((cost.site, ""), -1) if at is None else at
    return positions
