"""Host time that passes between two moments, with stretches of it taken out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gapless.trace.timeline import Ints, union


@dataclass(frozen=True)
class Clock:
    """A clock that stands still in some stretches, ordered and apart. Without any it is the real one."""

    starts: Ints
    ends: Ints

    @staticmethod
    def without(starts: Ints, ends: Ints) -> Clock:
        """The clock that stands still from each start to its end."""
        return Clock(*union(starts, ends))

    def read(self, times: Ints) -> Ints:
        """What it shows at these times (in order or not)."""
        if not len(self.starts):
            return times
        lengths = np.concatenate([[0], np.cumsum(self.ends - self.starts)])
        at = np.searchsorted(self.starts, times, side="right")
        within = np.minimum(times, self.ends[np.maximum(at - 1, 0)]) - self.starts[np.maximum(at - 1, 0)]
        stood = np.where(at > 0, lengths[np.maximum(at - 1, 0)] + within, 0)
        shown: Ints = times - stood
        return shown

    def between(self, starts: Ints, ends: Ints) -> Ints:
        """The time that passes on it."""
        return self.read(ends) - self.read(starts)


REAL = Clock(np.empty(0, np.int64), np.empty(0, np.int64))
