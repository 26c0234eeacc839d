"""What passes from a launch to its kernel and from work to the end of a wait for it, by profile."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gapless.replay.model import ReplayModel, ReplayRefusal, build
from gapless.trace.read import read
from gapless.trace.timeline import WorkKind

LAUNCHES, RETURNS = 20, 5
"""Occasions that a profile needs."""
WAITED = 2_000
"""Nanoseconds after which a call was waiting when its work ended."""


def latencies(folder: Path) -> list[tuple[str, str, float, float]]:
    """For each profile its name, its GPU, and both in microseconds, in the median; NaN where it does not
    tell. Not of those in which work begins before its launch, or a wait ends before its work: their clocks
    differ.
    """
    latency_rows = []
    for path in sorted(folder.glob("*.json.gz")):
        try:
            model = build(read(path))
        except Exception:  # one that cannot be read tells nothing
            continue
        if isinstance(model, ReplayRefusal):
            continue
        gpus = model.timeline.facts.gpus
        both = _launch(model), _return(model)
        if not all(map(np.isnan, both)) and not any(latency <= 0 for latency in both):
            latency_rows.append(
                (path.name.removesuffix(".json.gz")[:58], gpus[0].name if gpus else "", *both)
            )
    return latency_rows


def spreads(latency_rows: list[tuple[str, str, float, float]]) -> list[float]:
    """Standard deviations of the logarithms of both, between the profiles that tell."""
    both = np.array([row[2:] for row in latency_rows])
    return [float(np.nanstd(np.log(column))) for column in both.T]


def _launch(model: ReplayModel) -> float:
    """From the beginning of the call, where the stream had nothing to do."""
    timeline, work = model.timeline, model.timeline.work
    rows = np.flatnonzero((timeline.launchers >= 0) & (work.kind == WorkKind.KERNEL))
    begin = timeline.host.start[timeline.launchers[rows]]
    before = model.order.before[rows]
    idle = np.where(before >= 0, work.end[np.maximum(before, 0)], -1) < begin
    return float(np.median((work.start[rows] - begin)[idle])) / 1e3 if idle.sum() >= LAUNCHES else np.nan


def _return(model: ReplayModel) -> float:
    host, waits = model.timeline.host, model.waits
    with_work = waits.work >= 0
    call = np.where(waits.sync >= 0, waits.sync, waits.host)[with_work]
    ended = model.timeline.work.end[waits.work[with_work]]
    late = ended > host.start[call] + WAITED
    return float(np.median((host.end[call] - ended)[late])) / 1e3 if late.sum() >= RETURNS else np.nan
