"""Assumptions that a replay of a profile changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

PeerTiming = Literal["duration", "end"]
"""How long a collective takes if this rank comes to it earlier: as long as recorded (its peers come earlier
too), or until its recorded end (its peers come when they did).
"""


@dataclass(frozen=True, eq=False)
class ReplayPace:
    """A change of speed: `host` multiplies the host's time between two moments, `device` the time of each
    device operation (by row of `Timeline.work`), `latency` the delay from a launch to its work, and from work
    to the end of a wait for it. Gaps between kernels are unchanged.
    """

    host: float
    device: NDArray[np.float64]
    latency: float = 1.0

    def __mul__(self, other: ReplayPace) -> ReplayPace:
        return ReplayPace(self.host * other.host, self.device * other.device, self.latency * other.latency)


@dataclass(frozen=True)
class ReplayChange:
    """Assumptions of a replay; combined with ``|``, in any order.

    `without` are rows of `Timeline.host`: waiting calls that are removed. `input_free` makes every batch
    ready when it is requested, `graphed` makes all launches of a step one launch, `scaled` multiplies the
    time of device operations (rows of `Timeline.work`), `pace` that of all of them and of the host, and
    `collectives` says what the peers do.
    """

    without: frozenset[int] = frozenset()
    input_free: bool = False
    graphed: bool = False
    scaled: dict[int, float] = field(default_factory=dict)
    collectives: PeerTiming = "duration"
    pace: ReplayPace | None = None

    def __or__(self, other: ReplayChange) -> ReplayChange:
        """Combine two changes. An operation scaled in both is scaled by the product."""
        scaled = dict(self.scaled)
        for row, factor in other.scaled.items():
            scaled[row] = scaled.get(row, 1.0) * factor
        return ReplayChange(
            self.without | other.without,
            self.input_free or other.input_free,
            self.graphed or other.graphed,
            scaled,
            "end" if "end" in (self.collectives, other.collectives) else "duration",
            self.pace * other.pace if self.pace and other.pace else self.pace or other.pace,
        )

    @property
    def removes_only(self) -> bool:
        """Whether the change only removes waits."""
        return replace(self, without=frozenset()) == NO_CHANGE


NO_CHANGE = ReplayChange()


def remove_waits(rows: Iterable[int]) -> ReplayChange:
    """Return the change that removes the waits of these host rows."""
    return ReplayChange(without=frozenset(int(row) for row in rows))


def halve_work(rows: Iterable[int]) -> ReplayChange:
    """Return the change that makes these device operations twice as fast."""
    return ReplayChange(scaled=dict.fromkeys((int(row) for row in rows), 0.5))
