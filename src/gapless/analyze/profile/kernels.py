"""The kernels of a profile by time."""

from __future__ import annotations

import numpy as np

from gapless.analyze.profile.trace_steps import StepSpans, covered_time, is_communication, sum_by_group
from gapless.model.profile import KernelTime
from gapless.trace.timeline import Bools, Floats, HostKind, Ints, Timeline, WorkKind

MAX_KERNELS_KEPT = 40
"""How many kernels a profile keeps, to stay small."""


def longest_kernels(timeline: Timeline, steps: StepSpans, device: int) -> tuple[KernelTime, ...]:
    """Return the kernels that run longest in the steps, at most `MAX_KERNELS_KEPT`, longest first.

    Only the part of a kernel within the steps counts.
    """
    work = timeline.work
    rows = np.flatnonzero((work.device == device) & (work.kind == WorkKind.KERNEL))
    length = covered_time(steps.start, steps.end, work.start[rows], work.end[rows])
    rows, length = rows[length > 0], length[length > 0]
    kinds, which, calls = np.unique(work.name[rows], return_inverse=True, return_counts=True)
    total = sum_by_group(which, len(kinds), length)
    blocks = _weighted_means(which, length, work.blocks_per_sm[rows], len(kinds))
    occupancy = _weighted_means(which, length, work.occupancy[rows], len(kinds))
    communicates = np.zeros(len(kinds), bool)
    communicates[which[is_communication(timeline)[rows]]] = True
    operators = _main_operators(timeline, which, rows, len(kinds))
    best = np.argsort(-total, kind="stable")[:MAX_KERNELS_KEPT]
    return tuple(
        KernelTime(
            name=timeline.names[int(kinds[kind])],
            calls=int(calls[kind]),
            total=int(total[kind]),
            operator=timeline.names[operators[kind]] if operators[kind] >= 0 else "",
            communication=bool(communicates[kind]),
            blocks_per_sm=round(float(blocks[kind]), 3),
            occupancy=round(float(occupancy[kind]), 2),
        )
        for kind in best.tolist()
    )


def _weighted_means(which: Ints, length: Ints, value: Floats, count: int) -> Floats:
    """Return means weighted by time of the known (not negative) values; -1 if there is none."""
    is_known = value >= 0
    weight = np.bincount(which[is_known], length[is_known], count)
    total = np.bincount(which[is_known], value[is_known] * length[is_known], count)
    return np.where(weight > 0, total / np.maximum(weight, 1), -1.0)


def _main_operators(timeline: Timeline, which: Ints, rows: Ints, count: int) -> Ints:
    """Return for each kernel the name of the operator that launched most of its calls, or -1."""
    names = launching_operators(timeline)[rows].astype(np.int64)
    many = len(timeline.names) + 1
    pairs, times = np.unique(which * many + names + 1, return_counts=True)
    order = np.lexsort((times, pairs // many))
    last = np.append(np.diff(pairs[order] // many) > 0, True) if len(order) else np.empty(0, bool)
    operators = np.full(count, -1, np.int64)
    operators[pairs[order][last] // many] = pairs[order][last] % many - 1
    return operators


def launching_operators(timeline: Timeline) -> Ints:
    """Return for each row of `work` the name's number of the innermost operator around its launch, or -1."""
    rows = launching_rows(timeline)
    names = np.full(len(rows), -1, np.int64)
    names[rows >= 0] = timeline.host.name[rows[rows >= 0]]
    return names


def launching_rows(timeline: Timeline, wanted: Bools | None = None) -> Ints:
    """Return for each row of `work` the row of the innermost operator around its launch, or -1; only
    operators whose names are `wanted` count."""
    host = timeline.host
    calls = timeline.launchers
    linked = calls >= 0
    around_call = np.full(len(host), -1, np.int64)
    rows = around = np.flatnonzero(np.bincount(calls[linked]))
    while len(rows):  # each iteration moves one span outwards
        is_operator = host.kind[around] == HostKind.OPERATOR
        if wanted is not None:
            is_operator &= wanted[host.name[around]]
        around_call[rows[is_operator]] = around[is_operator]
        rows, around = rows[~is_operator], timeline.parents[around[~is_operator]]
        rows, around = rows[around >= 0], around[around >= 0]
    rows_of_work = np.full(len(calls), -1, np.int64)
    rows_of_work[linked] = around_call[calls[linked]]
    return rows_of_work
