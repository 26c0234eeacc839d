"""Kernels by time."""

from __future__ import annotations

import numpy as np

from gapless.analyze.profile.trace_steps import StepSpans, covered, is_communication, sums
from gapless.model.profile import KernelTime
from gapless.trace.timeline import Bools, Floats, HostKind, Ints, Timeline, WorkKind

MOST = 40
"""How many kernels a profile keeps."""


def top_kernels(timeline: Timeline, steps: StepSpans, device: int) -> tuple[KernelTime, ...]:
    """The kernels that run longest in the steps, at most `MOST`, longest first.

    A kernel that reaches beyond the steps counts with its part in them.
    """
    work = timeline.work
    rows = np.flatnonzero((work.device == device) & (work.kind == WorkKind.KERNEL))
    length = covered(steps.start, steps.end, work.start[rows], work.end[rows])
    rows, length = rows[length > 0], length[length > 0]
    kinds, which, calls = np.unique(work.name[rows], return_inverse=True, return_counts=True)
    total = sums(which, len(kinds), length)
    blocks = _means(which, length, work.blocks_per_sm[rows], len(kinds))
    occupancy = _means(which, length, work.occupancy[rows], len(kinds))
    talk = np.zeros(len(kinds), bool)
    talk[which[is_communication(timeline)[rows]]] = True
    operators = _operators(timeline, which, rows, len(kinds))
    best = np.argsort(-total, kind="stable")[:MOST]
    return tuple(
        KernelTime(
            name=timeline.names[int(kinds[one])],
            calls=int(calls[one]),
            total=int(total[one]),
            operator=timeline.names[operators[one]] if operators[one] >= 0 else "",
            communication=bool(talk[one]),
            blocks_per_sm=round(float(blocks[one]), 3),
            occupancy=round(float(occupancy[one]), 2),
        )
        for one in best.tolist()
    )


def _means(which: Ints, length: Ints, value: Floats, count: int) -> Floats:
    """Means weighted by time, of known (not negative) values; -1 where none is."""
    known = value >= 0
    weight = np.bincount(which[known], length[known], count)
    summed = np.bincount(which[known], value[known] * length[known], count)
    return np.where(weight > 0, summed / np.maximum(weight, 1), -1.0)


def _operators(timeline: Timeline, which: Ints, rows: Ints, count: int) -> Ints:
    """For each kernel the name of the operator that launched most of its calls, or -1."""
    names = launching_operators(timeline)[rows].astype(np.int64)
    many = len(timeline.names) + 1
    pairs, times = np.unique(which * many + names + 1, return_counts=True)
    order = np.lexsort((times, pairs // many))
    last = np.append(np.diff(pairs[order] // many) > 0, True) if len(order) else np.empty(0, bool)
    found = np.full(count, -1, np.int64)
    found[pairs[order][last] // many] = pairs[order][last] % many - 1
    return found


def launching_operators(timeline: Timeline) -> Ints:
    """For each row of `work` the name (a number) of the innermost operator around its launch, or -1."""
    rows = launching_rows(timeline)
    found = np.full(len(rows), -1, np.int64)
    found[rows >= 0] = timeline.host.name[rows[rows >= 0]]
    return found


def launching_rows(timeline: Timeline, wanted: Bools | None = None) -> Ints:
    """For each row of `work` the row of the innermost operator around its launch, or -1; of those operators
    alone whose names are `wanted`."""
    host = timeline.host
    calls = timeline.launchers
    linked = calls >= 0
    around_call = np.full(len(host), -1, np.int64)
    rows = around = np.flatnonzero(np.bincount(calls[linked]))
    while len(rows):  # each turn is one span further out
        there = host.kind[around] == HostKind.OPERATOR
        if wanted is not None:
            there &= wanted[host.name[around]]
        around_call[rows[there]] = around[there]
        rows, around = rows[~there], timeline.parents[around[~there]]
        rows, around = rows[around >= 0], around[around >= 0]
    found = np.full(len(calls), -1, np.int64)
    found[linked] = around_call[calls[linked]]
    return found
