"""What a file itself says of events that are not in it: numbers left out, arrows that lead nowhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gapless.trace.build import TWICE, Builder
from gapless.trace.timeline import HostKind, Ints, Timeline

_FEW = 50
"""Fewer operators without numbers of their own do not tell."""


def numbered(builder: Builder, made: Timeline) -> tuple[int, int, int]:
    """How many of the profiler's numbers for operators and annotations are there, of how many, after which.

    ``Ev Idx`` counts them without gaps, in some versions with records of memory among them. Files up to torch
    1.11 have only the operators' ``External id``, of which some are skipped where nothing was recorded for a
    while: the longest gap does not count.
    """
    counts = [_dense(builder.numbers), _dense([*builder.numbers, *builder.memory_numbers])]
    if counts[0][0]:
        return max(counts, key=lambda one: one[0] / one[1])
    host = made.host
    rows = np.isin(host.kind, (HostKind.OPERATOR, HostKind.ANNOTATION)) & (host.external > 0)
    found = np.unique(host.external[rows])
    if len(found) < _FEW:
        return 0, 0, 0
    gaps = np.diff(found) - 1
    return len(found), len(found) + int(gaps.sum() - gaps.max()), 0


def _dense(numbers: Sequence[Ints]) -> tuple[int, int, int]:
    """How many different numbers these are, how many there are up to the greatest, and from which one on."""
    found = np.unique(np.concatenate(numbers)) if numbers else np.empty(0, np.int64)
    if not len(found):
        return 0, 0, 0
    # They begin at 0, except in parts that were taken out of larger profiles.
    begin = int(found[0]) if found[0] > len(found) else 0
    return len(found), int(found[-1]) - begin + 1, begin


def arrows(builder: Builder, made: Timeline) -> int:
    """How many arrows lead from calls to work of a device that is not there."""
    ends = builder.arrows.beside({(one.pid, one.tid) for one in made.threads})
    if not len(ends) or builder.dropped[TWICE]:  # of arrows there is no telling which are there twice
        return 0
    wanted, counts = np.unique(ends, return_counts=True)
    for there in (made.work.correlation, made.syncs.correlation):
        known, held = np.unique(there, return_counts=True)
        at = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
        counts = counts - np.where(known[at] == wanted, held[at], 0) if len(known) else counts
    return int(np.maximum(counts, 0).sum())
