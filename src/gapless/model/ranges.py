"""`Range`: a time interval with a likely value."""

from __future__ import annotations

import msgspec

MIN_SAVING_SHARE = 0.0001
"""A saving below this share of a step counts as none."""
SMALL_SAVING_SHARE = 0.02
"""A saving below this share of a step counts as small."""


class Range(msgspec.Struct, frozen=True, array_like=True):
    """Nanoseconds: a likely value, and the interval that holds the true one in four of five cases."""

    least: int = 0
    likely: int = 0
    most: int = 0

    def tells(self, step: int) -> bool:
        """Whether a saving in a step of `step` nanoseconds is clearly more than none."""
        return self.least > MIN_SAVING_SHARE * step

    def small(self, step: int) -> bool:
        """Whether a saving in a step of `step` nanoseconds is small even at its upper end."""
        return self.most < SMALL_SAVING_SHARE * step
