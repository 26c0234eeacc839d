"""Which span lies right inside which, on each thread."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gapless.trace.timeline import Ints


def parents(thread: NDArray[np.int32], start: Ints, end: Ints) -> Ints:
    """For each span the position of the innermost one around it on its thread, or -1.

    The spans are ordered by thread, start and falling end. Spans that cross the end of their neighbour, as
    rounded times and clock trouble make them, get the innermost span that covers their start.
    """
    count = len(start)
    if not count:
        return np.empty(0, np.int64)
    span = int(end.max()) - int(start.min()) + 2
    # One axis for all threads, so that every comparison stays inside its own. In half nanoseconds, so that a
    # span of no length closes after it opens and before anything else begins.
    offset = thread.astype(np.int64) * span - int(start.min())
    opens = 2 * (start + offset)
    closes = np.maximum(2 * (end + offset), opens + 1)
    depth = np.arange(count) - np.searchsorted(np.sort(closes), opens, side="right")
    depth = np.maximum(depth, 0)
    rows = np.arange(count)
    key = depth * count + rows
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    wanted = (depth - 1) * count + rows
    at = np.searchsorted(ordered, wanted) - 1
    result = np.where((depth > 0) & (at >= 0), order[np.maximum(at, 0)], -1)
    # Trust, but check: whatever does not cover the start of its child gives way to its own parent.
    while True:
        wrong = (result >= 0) & ((closes[result] < opens) | (thread[result] != thread))
        if not wrong.any():
            return result
        result[wrong] = result[result[wrong]]
