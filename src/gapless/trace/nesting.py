"""Find the span directly around each span, on each thread."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gapless.trace.columns import Bools, HostKind, Ints

_MICROSECOND = 1000
"""In nanoseconds: the resolution of files that round their times."""
_MAX_ROUNDS = 16
"""Rounds of taking out crossing spans before the rest is done one by one."""
_MAX_COMPARISONS = 200_000_000
"""Comparisons that crossing spans may cost before all spans are done one by one."""


def find_parents(
    thread: NDArray[np.int32], start: Ints, end: Ints, kind: NDArray[np.int8] | None = None
) -> Ints:
    """Return the position of the innermost span around the start of each span on its thread, or -1.

    The spans are ordered by thread, start and falling end. Where one ends after the one around it by no more
    than the rounding of the file's times, both are taken to end together. Spans may cross: ``with
    record_function`` begins inside one Python function and ends inside another. With the `kind` of host
    spans, calls contain only calls, and calls without length contain nothing.
    """
    if not len(start):
        return np.empty(0, np.int64)
    length = int(end.max()) - int(start.min()) + 2
    # One axis for all threads, so that every comparison stays inside its own. In half nanoseconds, so that a
    # span of no length closes after it opens and before anything else begins.
    offset = thread.astype(np.int64) * length - int(start.min())
    opens = 2 * (start + offset)
    closes = np.maximum(2 * (end + offset), opens + 1)
    whole = not (start % _MICROSECOND).any() and not (end % _MICROSECOND).any()
    result = _find_innermost(opens, closes, _MICROSECOND if whole else 2)
    return result if kind is None else _skip_calls(result, kind, start, end)


def _find_innermost(opens: Ints, closes: Ints, rounding: int) -> Ints:
    """Return the last span that begins before each span and is open there; `closes` is rounded in place."""
    nested = np.ones(len(opens), bool)
    for _ in range(_MAX_ROUNDS):
        result = _innermost_spans(opens, closes, nested)
        over = np.where((result >= 0) & nested, closes - closes[result], 0)
        crossing = over > 2 * rounding + 1
        rounded = (over > 1) & ~crossing
        if rounded.any():
            closes[rounded] = np.maximum(closes[result[rounded]], opens[rounded] + 1)
        elif not crossing.any():
            break
        nested &= ~crossing
    else:
        return _find_innermost_one_by_one(opens, closes)
    rows = np.flatnonzero(~nested)
    beyond = np.searchsorted(opens, closes[rows])
    if int((beyond - rows).sum()) > _MAX_COMPARISONS:
        return _find_innermost_one_by_one(opens, closes)
    for row, stop in zip(rows.tolist(), beyond.tolist(), strict=True):
        np.maximum(result[row + 1 : stop], row, out=result[row + 1 : stop])
    return result


def _innermost_spans(opens: Ints, closes: Ints, nested: Bools) -> Ints:
    """Return the innermost of the `nested` spans, none of which cross, around the start of each span."""
    rows = np.arange(len(opens))
    members = np.flatnonzero(nested)
    begun: Ints = np.cumsum(nested) - nested
    depth = np.maximum(begun - np.searchsorted(np.sort(closes[members]), opens, side="right"), 0)
    key = depth[members] * len(opens) + members
    order = np.argsort(key, kind="stable")
    at = np.searchsorted(key[order], (depth - 1) * len(opens) + rows) - 1
    result = np.where((depth > 0) & (at >= 0), members[order[np.maximum(at, 0)]], -1)
    # While some of them do cross, what is closed already gives way to its own parent.
    while True:
        wrong = (result >= 0) & (closes[result] <= opens)
        if not wrong.any():
            return result
        result[wrong] = result[result[wrong]]


def _find_innermost_one_by_one(opens: Ints, closes: Ints) -> Ints:
    result = np.full(len(opens), -1, np.int64)
    around: list[int] = []
    ends = closes.tolist()
    for row, begin in enumerate(opens.tolist()):
        while around and ends[around[-1]] <= begin:
            around.pop()
        if around:
            result[row] = around[-1]
        around.append(row)
    return result


def _skip_calls(result: Ints, kind: NDArray[np.int8], start: Ints, end: Ints) -> Ints:
    """Replace parents that are calls, except of calls: the clock of calls differs from that of operators."""
    call = kind == HostKind.CALL
    empty = call & (start == end)
    while True:
        # Above a call that gives way there may be what ended during the call.
        closed = (end[result] < start) | ((end[result] == start) & (start[result] < start))
        wrong = (result >= 0) & ((call[result] & (~call | empty[result])) | closed)
        if not wrong.any():
            return result
        result[wrong] = result[result[wrong]]
