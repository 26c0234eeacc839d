"""Device time by the line that launched it."""

from __future__ import annotations

import numpy as np

from gapless.analyze.profile.lines import PlaceIndex
from gapless.analyze.profile.trace_steps import StepSpans
from gapless.model import Site
from gapless.model.profile import LineTime
from gapless.trace.timeline import Timeline

MAX_LINES_KEPT = 40
"""Lines a profile keeps: more than reports show, few enough to keep its file small."""
_MAX_CHAINS = 400
"""Distinct chains of callers that are examined, longest device time first; the rest takes little time."""


def hot_lines(timeline: Timeline, steps: StepSpans, device: int, places: PlaceIndex) -> tuple[LineTime, ...]:
    """Return the device time of the steps by the line that launched it, longest first."""
    work = timeline.work
    launch = timeline.launchers
    rows = np.flatnonzero((work.device == device) & (launch >= 0) & (steps.at(work.start) >= 0))
    if not len(rows):
        return ()
    launched, back = np.unique(launch[rows], return_inverse=True)
    length = np.bincount(back.reshape(-1), weights=work.end[rows] - work.start[rows])
    kernels = np.bincount(back.reshape(-1))
    keys = places.keys(launched)
    _, first, codes = np.unique(keys, return_index=True, return_inverse=True)
    codes = codes.reshape(-1)
    total = np.bincount(codes, weights=length)
    count = np.bincount(codes, weights=kernels)
    sums: dict[Site, tuple[int, int]] = {}
    for code in np.argsort(-total, kind="stable")[:_MAX_CHAINS].tolist():
        place = places.place(int(launched[first[code]]))
        site = place.site
        previous = sums.get(site, (0, 0))
        sums[site] = (previous[0] + int(total[code]), previous[1] + int(count[code]))
    ordered = sorted(sums.items(), key=lambda item: -item[1][0])[:MAX_LINES_KEPT]
    return tuple(LineTime(site=site, total=totals[0], kernels=totals[1]) for site, totals in ordered)
