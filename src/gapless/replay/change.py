"""What is assumed to be different when a profile is run again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Collectives = Literal["duration", "end"]
"""How long a collective takes when this rank comes to it earlier: as long as recorded (the peers come earlier
as well), or until the recorded end (the peers come when they came)."""


@dataclass(frozen=True, eq=False)
class Pace:
    """Everything slower or faster: `host` multiplies the host's own time between two moments, `device` the
    time of each device operation (by row of `Timeline.work`), `latency` what passes from a launch to its work
    and from work to the end of a wait for it. What passes between two kernels stays what it is."""

    host: float
    device: NDArray[np.float64]
    latency: float = 1.0

    def __mul__(self, other: Pace) -> Pace:
        return Pace(self.host * other.host, self.device * other.device, self.latency * other.latency)


@dataclass(frozen=True)
class Change:
    """Assumptions of a replay; they add up with ``|``, in any order.

    `without` are rows of `Timeline.host`: the waiting calls that are removed. `input_free` makes every batch
    ready when it is asked for, `graphed` makes one launch of all the launches of a step, `scaled` multiplies
    the time of device operations (rows of `Timeline.work`), `pace` that of all of them and the host's, and
    `collectives` says what the peers do.
    """

    without: frozenset[int] = frozenset()
    input_free: bool = False
    graphed: bool = False
    scaled: dict[int, float] = field(default_factory=dict)
    collectives: Collectives = "duration"
    pace: Pace | None = None

    def __or__(self, other: Change) -> Change:
        """Both changes. An operation scaled in both is scaled by the product."""
        scaled = dict(self.scaled)
        for row, factor in other.scaled.items():
            scaled[row] = scaled.get(row, 1.0) * factor
        return Change(
            self.without | other.without,
            self.input_free or other.input_free,
            self.graphed or other.graphed,
            scaled,
            "end" if "end" in (self.collectives, other.collectives) else "duration",
            self.pace * other.pace if self.pace and other.pace else self.pace or other.pace,
        )

    @property
    def removes_only(self) -> bool:
        """Whether this only removes waits."""
        return replace(self, without=frozenset()) == NOTHING


NOTHING = Change()


def without(rows: Iterable[int]) -> Change:
    """The waits of these host rows removed."""
    return Change(without=frozenset(int(row) for row in rows))


def halved(rows: Iterable[int]) -> Change:
    """These device operations made twice as fast."""
    return Change(scaled=dict.fromkeys((int(row) for row in rows), 0.5))
