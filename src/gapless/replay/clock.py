"""Measure host time between two moments, without some intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gapless.trace.timeline import Ints, union


@dataclass(frozen=True)
class HostClock:
    """A clock that stands still in some ordered, disjoint intervals, and otherwise runs `rate` times as fast
    as the real one.
    """

    starts: Ints
    ends: Ints
    rate: float = 1.0

    @staticmethod
    def without(starts: Ints, ends: Ints, rate: float = 1.0) -> HostClock:
        """Return the clock that stands still from each start to its end."""
        return HostClock(*union(starts, ends), rate)

    def readings(self, times: Ints) -> Ints:
        """Return the readings at these times, in any order."""
        if not len(self.starts):
            return self.scale(times)
        lengths = np.concatenate([[0], np.cumsum(self.ends - self.starts)])
        at = np.searchsorted(self.starts, times, side="right")
        within = np.minimum(times, self.ends[np.maximum(at - 1, 0)]) - self.starts[np.maximum(at - 1, 0)]
        stood = np.where(at > 0, lengths[np.maximum(at - 1, 0)] + within, 0)
        return self.scale(times - stood)

    def scale(self, times: Ints) -> Ints:
        """Convert durations of the real clock outside of the intervals to this clock."""
        if self.rate == 1.0:
            return times
        paced: Ints = np.rint(times * self.rate).astype(np.int64)
        return paced

    def between(self, starts: Ints, ends: Ints) -> Ints:
        """Return the time that passes on this clock."""
        return self.readings(ends) - self.readings(starts)


REAL_CLOCK = HostClock(np.empty(0, np.int64), np.empty(0, np.int64))
