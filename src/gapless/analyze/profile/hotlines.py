"""Device time by the line that launched it."""

from __future__ import annotations

import numpy as np

from gapless.analyze.profile.lines import Places
from gapless.analyze.profile.trace_steps import StepSpans
from gapless.model import Site
from gapless.model.profile import LineTime
from gapless.trace.timeline import Timeline

MOST = 40
_CONSIDERED = 400
"""So many distinct chains of callers are looked at, those with most device time first."""


def hot_lines(timeline: Timeline, steps: StepSpans, device: int, places: Places) -> tuple[LineTime, ...]:
    """Where the device time of the steps comes from: the work launched at each place, longest first."""
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
    for code in np.argsort(-total, kind="stable")[:_CONSIDERED].tolist():
        place = places.place(int(launched[first[code]]))
        site = place.site
        have = sums.get(site, (0, 0))
        sums[site] = (have[0] + int(total[code]), have[1] + int(count[code]))
    ordered = sorted(sums.items(), key=lambda one: -one[1][0])[:MOST]
    return tuple(LineTime(site=site, total=both[0], kernels=both[1]) for site, both in ordered)
