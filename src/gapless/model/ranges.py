"""`Range`: a time as an interval."""

from __future__ import annotations

import msgspec

NOTHING = 0.0001
"""A saving below this share of a step is none."""
LITTLE = 0.02
"""A saving below this share of a step is small."""


class Range(msgspec.Struct, frozen=True, array_like=True):
    """Nanoseconds: a likely value, and the interval around it in which the true one lies in four of five
    cases."""

    least: int = 0
    likely: int = 0
    most: int = 0

    def tells(self, step: int) -> bool:
        """Whether a saving of `step` nanoseconds is more than nothing: its interval keeps clear of zero."""
        return self.least > NOTHING * step

    def small(self, step: int) -> bool:
        """Whether it is little at the most."""
        return self.most < LITTLE * step
