"""Decide whether a number has changed by enough to say so."""

from __future__ import annotations

from gapless.model.comparison import State

MIN_RELATIVE_CHANGE = 0.05
"""Repeated runs of one program differ by a few percent in most of their parts."""


def judge_change(before: float, after: float, floor: float = 0.0) -> State:
    """Return how a number changed, where 0 means absent; a change up to `floor` is "same"."""
    if abs(after - before) <= max(floor, MIN_RELATIVE_CHANGE * max(before, after)):
        return "same"
    if not before:
        return "new"
    if not after:
        return "gone"
    return "more" if after > before else "less"
