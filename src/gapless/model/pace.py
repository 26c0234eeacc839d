"""How often something stays of a run's steps: in every step, every N steps, or not steadily at all."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

WARM_UP = 2
"""Steps in which what stays is made: the optimizer's state, caches, workspaces."""
LEAST = 4
"""Steps after those that must each have left something behind."""
KEPT = 1
"""What the last steps hold may still be given back: a step's loss lives until the next one's."""
SURE = 3
"""Times at one distance that show growth, whatever keeps it."""
_APART = 2
"""Steps between two times from which on growth is not that of every step."""


def pace(left: Collection[int], steps: int) -> int:
    """Every how many of `steps` steps something stays: 1 for every step, 0 where it does not come steadily.

    `left` are the numbers of the steps, from 0, of which something is still there. Two times are enough where
    the first comes as long after the beginning as the second after the first: they then end an epoch.
    """
    last = steps - KEPT
    if last - WARM_UP < LEAST:
        return 0
    if all(step in left for step in range(WARM_UP, last)):
        return 1
    ordered = sorted(left)
    gaps = [after - before for before, after in pairwise(ordered)]
    if not gaps or min(gaps) < _APART or max(gaps) > min(gaps) + 1:
        return 0
    if max(ordered[0], steps - ordered[-1]) > 2 * max(gaps):
        return 0  # only the last few are kept, or it has stopped
    if len(ordered) < SURE and ordered[0] != gaps[0]:
        return 0
    return round((ordered[-1] - ordered[0]) / len(gaps))


def steady(left: Collection[int], steps: int, every: int) -> Sequence[int]:
    """The steps of `left` that count at that pace: not the first ones, where each leaves something."""
    return sorted(step for step in left if every > 1 or WARM_UP <= step < steps - KEPT)
