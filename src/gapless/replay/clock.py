"""Host time that passes between two moments, with stretches of it taken out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gapless.trace.timeline import Ints, union


@dataclass(frozen=True)
class Clock:
    """A clock that stands still in some stretches, ordered and apart, and goes `rate` times as fast as the
    real one. Without any stretches and at 1 it is the real one."""

    starts: Ints
    ends: Ints
    rate: float = 1.0

    @staticmethod
    def without(starts: Ints, ends: Ints, rate: float = 1.0) -> Clock:
        """The clock that stands still from each start to its end."""
        return Clock(*union(starts, ends), rate)

    def read(self, times: Ints) -> Ints:
        """What it shows at these times (in order or not)."""
        if not len(self.starts):
            return self.paced(times)
        lengths = np.concatenate([[0], np.cumsum(self.ends - self.starts)])
        at = np.searchsorted(self.starts, times, side="right")
        within = np.minimum(times, self.ends[np.maximum(at - 1, 0)]) - self.starts[np.maximum(at - 1, 0)]
        stood = np.where(at > 0, lengths[np.maximum(at - 1, 0)] + within, 0)
        return self.paced(times - stood)

    def paced(self, times: Ints) -> Ints:
        """What takes so long by the real clock, by this one; stretches left aside."""
        if self.rate == 1.0:
            return times
        paced: Ints = np.rint(times * self.rate).astype(np.int64)
        return paced

    def between(self, starts: Ints, ends: Ints) -> Ints:
        """The time that passes on it."""
        return self.read(ends) - self.read(starts)


REAL = Clock(np.empty(0, np.int64), np.empty(0, np.int64))
