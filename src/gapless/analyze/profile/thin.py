"""Spans made few: neighbours that nobody could tell apart become one box."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gapless.trace.timeline import Ints, Table, distinct

_CELLS = 8
"""A box of merged spans ends where a cell of so many times the resolution does: it keeps their texture."""


@dataclass(frozen=True)
class Bars(Table):
    """Spans on lines, ordered by line, then start.

    `what` says what each is, `count` how many it stands for and `busy` how long those last together.
    """

    line: Ints
    start: Ints
    end: Ints
    what: Ints
    count: Ints
    busy: Ints


def bars(line: Ints, start: Ints, end: Ints, what: Ints) -> Bars:
    """These spans (in any order) as bars, one each."""
    order = np.lexsort((start, line))
    line, start, end, what = (np.asarray(one, np.int64)[order] for one in (line, start, end, what))
    return Bars(line, start, end, what, np.ones(len(order), np.int64), end - start)


def thinned(given: Bars, budget: int, finest: int) -> tuple[Bars, int]:
    """`given` as at most `budget` bars (or one for each line, where that is more), and the resolution used.

    It is `finest` nanoseconds or the first power of two times that which does; 0 where nothing was merged.
    """
    if len(given) <= budget:
        return given, 0
    resolution = max(finest, 1)
    found = merged(given, resolution)
    least = max(budget, len(distinct(given.line)))
    span = int(given.end.max() - given.start.min())
    while len(found) > least and resolution <= span:
        resolution *= 2
        found = merged(found, resolution)
    return found, resolution


def merged(given: Bars, resolution: int) -> Bars:
    """Neighbours on one line that are shorter than `resolution`, and closer, as one bar.

    It has the name of its longest.
    """
    if len(given) < 2:
        return given
    small = given.end - given.start < resolution
    glued = small[1:] & small[:-1] & (given.line[1:] == given.line[:-1])
    glued &= given.start[1:] - given.end[:-1] < resolution
    cell = given.start // (_CELLS * resolution)
    glued &= cell[1:] == cell[:-1]
    head = np.flatnonzero(np.append(True, ~glued))
    if len(head) == len(given):
        return given
    # The longest member by one reduction: its length in the upper bits, its position in the lower.
    key = (np.minimum(given.busy, (1 << 31) - 1) << 32) | np.arange(len(given))
    longest = np.maximum.reduceat(key, head) & 0xFFFFFFFF
    return Bars(
        given.line[head],
        given.start[head],
        np.maximum.reduceat(given.end, head),
        given.what[longest],
        np.add.reduceat(given.count, head),
        np.add.reduceat(given.busy, head),
    )


def by_what(given: Bars, budget: int) -> Bars:
    """`given` as about `budget` bars, of which each stands for equals only; none is lost."""
    if len(given) <= budget:
        return given
    kinds = int(given.what.max()) + 1
    order = np.lexsort((given.start, given.what, given.line))
    sorted_ = given.take(order)
    few, _ = thinned(replace(sorted_, line=sorted_.line * kinds + sorted_.what), budget, 1)
    return replace(few, line=few.line // kinds)


def within(given: Bars, low: int, high: int) -> Bars:
    """Those that have a part between `low` and `high`."""
    return given.take(np.flatnonzero((given.end > low) & (given.start < high)))
