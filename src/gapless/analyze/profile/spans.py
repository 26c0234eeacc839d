"""Sets of disjoint, ordered spans."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gapless.trace.timeline import Bools, Ints, distinct


class Spans(NamedTuple):
    """Disjoint spans in order; `row` says what each belongs to."""

    start: Ints
    end: Ints
    row: Ints

    @property
    def length(self) -> Ints:
        return self.end - self.start

    def keep(self, chosen: Ints | Bools) -> Spans:
        """Those at the positions (or under the mask) `chosen`."""
        return Spans(self.start[chosen], self.end[chosen], self.row[chosen])


EMPTY = Spans(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))


def flat(start: Ints, end: Ints, row: Ints) -> Spans:
    """Spans that may overlap, made disjoint: where two run, the one that began last has the time."""
    if not len(start):
        return EMPTY
    order = np.lexsort((-end, start))
    start, end, row = start[order], end[order], row[order]
    if (end[:-1] <= start[1:]).all():
        return Spans(start, end, row).keep(end > start)
    cuts = distinct(np.concatenate([start, end]))
    owner = np.full(len(cuts), -1, np.int64)
    opens = np.searchsorted(cuts, start)
    closes = np.searchsorted(cuts, end)
    # Later spans paint over earlier ones; few overlap, so the loop is short where it is entered at all.
    for position, (first, last) in enumerate(zip(opens.tolist(), closes.tolist(), strict=True)):
        owner[first:last] = position
    used = np.flatnonzero(owner[:-1] >= 0)
    return Spans(cuts[used], cuts[used + 1], row[owner[used]])


def intersect(one: Spans, other: Spans) -> tuple[Spans, Ints, Ints]:
    """What both cover, with the positions in each that the parts come from; `row` is that of `other`."""
    if not len(one.start) or not len(other.start):
        none = np.empty(0, np.int64)
        return EMPTY, none, none
    first = np.searchsorted(other.end, one.start, side="right")
    last = np.searchsorted(other.start, one.end, side="left")
    counts = np.maximum(last - first, 0)
    ones = np.repeat(np.arange(len(counts)), counts)
    ends = np.cumsum(counts)
    others = np.arange(len(ones)) - np.repeat(ends - counts, counts) + np.repeat(first, counts)
    start = np.maximum(one.start[ones], other.start[others])
    end = np.minimum(one.end[ones], other.end[others])
    good = end > start
    ones, others = ones[good], others[good]
    return Spans(start[good], end[good], other.row[others]), ones, others


def complement(spans: Spans, low: int, high: int) -> Spans:
    """What lies between `low` and `high` outside of these spans; `row` is the position of the next span."""
    start = np.concatenate([[low], spans.end]).astype(np.int64)
    end = np.concatenate([spans.start, [high]]).astype(np.int64)
    row = np.arange(len(start))
    good = end > start
    return Spans(start[good], end[good], row[good])


def subtract(one: Spans, other: Spans) -> Spans:
    """What `one` covers and `other` does not; `row` is that of `one`."""
    if not len(one.start) or not len(other.start):
        return one
    low = int(min(one.start[0], other.start[0])) - 1
    high = int(max(one.end[-1], other.end[-1])) + 1
    left, ones, _ = intersect(one, complement(other, low, high))
    return Spans(left.start, left.end, one.row[ones])
