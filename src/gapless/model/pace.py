"""How regularly steps leave memory behind: every step, every N steps, or not steadily."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

WARM_UP = 2
"""Steps in which lasting memory is allocated: optimizer state, caches, workspaces."""
MIN_STEPS = 4
"""Steps after warm-up that must each have left something behind."""
LAST_STEPS_IGNORED = 1
"""Last steps to ignore: their memory may still be freed, as a step's loss lives until the next one's."""
MIN_REPEATS = 3
"""Repetitions at one interval that show growth, whatever holds the memory."""
_MIN_INTERVAL = 2
"""Steps between two occurrences from which on growth is not that of every step."""


def growth_interval(left: Collection[int], steps: int) -> int:
    """Return the interval in steps at which memory stays: 1 for every step, 0 if it is not steady.

    `left` holds the numbers of the steps, from 0, of which something remains. Two occurrences suffice if the
    first comes as long after the beginning as the second after the first: they then end an epoch.
    """
    last = steps - LAST_STEPS_IGNORED
    if last - WARM_UP < MIN_STEPS:
        return 0
    if all(step in left for step in range(WARM_UP, last)):
        return 1
    ordered = sorted(left)
    gaps = [after - before for before, after in pairwise(ordered)]
    if not gaps or min(gaps) < _MIN_INTERVAL or max(gaps) > min(gaps) + 1:
        return 0
    if max(ordered[0], steps - ordered[-1]) > 2 * max(gaps):
        return 0  # only the last few are kept, or it has stopped
    if len(ordered) < MIN_REPEATS and ordered[0] != gaps[0]:
        return 0
    return round((ordered[-1] - ordered[0]) / len(gaps))


def steady_steps(left: Collection[int], steps: int, every: int) -> Sequence[int]:
    """Return the steps of `left` that count at that interval, without warm-up if every step leaves
    something."""
    return sorted(step for step in left if every > 1 or WARM_UP <= step < steps - LAST_STEPS_IGNORED)
