"""When a number has changed by enough to say so."""

from __future__ import annotations

from gapless.model.comparison import State

RELATIVE = 0.05
"""Repeated runs of one program differ by a few percent in most of their parts."""


def verdict(before: float, after: float, floor: float = 0.0) -> State:
    """What became of a number that is 0 where the thing is not there; a change up to `floor` is none."""
    if abs(after - before) <= max(floor, RELATIVE * max(before, after)):
        return "same"
    if not before:
        return "new"
    if not after:
        return "gone"
    return "more" if after > before else "less"
