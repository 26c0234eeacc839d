"""Sets of disjoint, ordered spans."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gapless.trace.timeline import Bools, Ints, distinct


class Spans(NamedTuple):
    """Disjoint spans in order; `row` says to what each belongs."""

    start: Ints
    end: Ints
    row: Ints

    @property
    def length(self) -> Ints:
        return self.end - self.start

    def keep(self, chosen: Ints | Bools) -> Spans:
        """Return the spans at the positions (or under the mask) `chosen`."""
        return Spans(self.start[chosen], self.end[chosen], self.row[chosen])


EMPTY = Spans(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))


def flatten_spans(start: Ints, end: Ints, row: Ints) -> Spans:
    """Make spans disjoint: where several overlap, the one that began last keeps the time."""
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
    # Later spans overwrite earlier ones; few overlap, so the loop is short.
    for position, (first, last) in enumerate(zip(opens.tolist(), closes.tolist(), strict=True)):
        owner[first:last] = position
    used = np.flatnonzero(owner[:-1] >= 0)
    return Spans(cuts[used], cuts[used + 1], row[owner[used]])


def intersect(first_spans: Spans, other: Spans) -> tuple[Spans, Ints, Ints]:
    """Return the parts covered by both, with the `row` of `other`, and for each part its position in both."""
    if not len(first_spans.start) or not len(other.start):
        none = np.empty(0, np.int64)
        return EMPTY, none, none
    first = np.searchsorted(other.end, first_spans.start, side="right")
    last = np.searchsorted(other.start, first_spans.end, side="left")
    counts = np.maximum(last - first, 0)
    first_rows = np.repeat(np.arange(len(counts)), counts)
    ends = np.cumsum(counts)
    other_rows = np.arange(len(first_rows)) - np.repeat(ends - counts, counts) + np.repeat(first, counts)
    start = np.maximum(first_spans.start[first_rows], other.start[other_rows])
    end = np.minimum(first_spans.end[first_rows], other.end[other_rows])
    good = end > start
    first_rows, other_rows = first_rows[good], other_rows[good]
    return Spans(start[good], end[good], other.row[other_rows]), first_rows, other_rows


def complement(spans: Spans, low: int, high: int) -> Spans:
    """Return the gaps between `low` and `high` outside of these spans; `row` is the next span's position."""
    start = np.concatenate([[low], spans.end]).astype(np.int64)
    end = np.concatenate([spans.start, [high]]).astype(np.int64)
    row = np.arange(len(start))
    good = end > start
    return Spans(start[good], end[good], row[good])


def subtract(spans: Spans, other: Spans) -> Spans:
    """Return what `spans` cover and `other` does not; `row` is from `spans`."""
    if not len(spans.start) or not len(other.start):
        return spans
    low = int(min(spans.start[0], other.start[0])) - 1
    high = int(max(spans.end[-1], other.end[-1])) + 1
    left, positions, _ = intersect(spans, complement(other, low, high))
    return Spans(left.start, left.end, spans.row[positions])
