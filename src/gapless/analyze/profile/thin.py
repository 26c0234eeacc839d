"""Thin out spans: neighbours too small to distinguish become one box."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gapless.trace.timeline import ColumnTable, Ints, distinct

_CELL_SIZE = 8
"""Merged boxes end at cells of this many times the resolution, so that they keep their texture."""


@dataclass(frozen=True)
class Bars(ColumnTable):
    """Spans on lines, ordered by line, then start.

    `name` numbers what each is, `count` how many spans it stands for and `busy` their total length.
    """

    line: Ints
    start: Ints
    end: Ints
    name: Ints
    count: Ints
    busy: Ints


def make_bars(line: Ints, start: Ints, end: Ints, name: Ints) -> Bars:
    """Turn spans in any order into bars, one each."""
    order = np.lexsort((start, line))
    line, start, end, name = (np.asarray(column, np.int64)[order] for column in (line, start, end, name))
    return Bars(line, start, end, name, np.ones(len(order), np.int64), end - start)


def thin_bars(bars: Bars, budget: int, finest: int) -> tuple[Bars, int]:
    """Thin to at most `budget` bars (one per line if there are more lines); return the resolution used.

    The resolution is `finest` nanoseconds times the smallest sufficient power of two; 0 if none was merged.
    """
    if len(bars) <= budget:
        return bars, 0
    resolution = max(finest, 1)
    thin = merge_bars(bars, resolution)
    least = max(budget, len(distinct(bars.line)))
    span = int(bars.end.max() - bars.start.min())
    while len(thin) > least and resolution <= span:
        resolution *= 2
        thin = merge_bars(thin, resolution)
    return thin, resolution


def merge_bars(bars: Bars, resolution: int) -> Bars:
    """Merge neighbours on one line that are shorter than `resolution`, and closer, into one bar.

    It is named after its longest member.
    """
    if len(bars) < 2:
        return bars
    small = bars.end - bars.start < resolution
    glued = small[1:] & small[:-1] & (bars.line[1:] == bars.line[:-1])
    glued &= bars.start[1:] - bars.end[:-1] < resolution
    cell = bars.start // (_CELL_SIZE * resolution)
    glued &= cell[1:] == cell[:-1]
    head = np.flatnonzero(np.append(True, ~glued))
    if len(head) == len(bars):
        return bars
    # Find the longest member by one reduction: length in the upper bits, position in the lower.
    key = (np.minimum(bars.busy, (1 << 31) - 1) << 32) | np.arange(len(bars))
    longest = np.maximum.reduceat(key, head) & 0xFFFFFFFF
    return Bars(
        bars.line[head],
        bars.start[head],
        np.maximum.reduceat(bars.end, head),
        bars.name[longest],
        np.add.reduceat(bars.count, head),
        np.add.reduceat(bars.busy, head),
    )


def thin_within_names(bars: Bars, budget: int) -> Bars:
    """Thin to about `budget` bars, merging only bars of equal `name`, so that no name is lost."""
    if len(bars) <= budget:
        return bars
    kinds = int(bars.name.max()) + 1
    order = np.lexsort((bars.start, bars.name, bars.line))
    sorted_ = bars.take(order)
    few, _ = thin_bars(replace(sorted_, line=sorted_.line * kinds + sorted_.name), budget, 1)
    return replace(few, line=few.line // kinds)


def within(bars: Bars, low: int, high: int) -> Bars:
    """Return the bars that overlap the time from `low` to `high`."""
    return bars.take(np.flatnonzero((bars.end > low) & (bars.start < high)))
