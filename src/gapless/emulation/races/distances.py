"""How far behind the newest work an event was recorded: whether waiting for it leaves the GPU idle."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

_QUEUED_SHARE = 0.5
"""Share of a step's work that must be queued behind an event for its wait to be mere ordering."""


class Position(NamedTuple):
    """A point in a run: the steps that had ended by then, and the operators that were launched."""

    tick: int
    launches: int


class EventDistances:
    """Compares what was launched after an event with what is launched in a step."""

    def __init__(self) -> None:
        self.launches = 0
        """Operators launched on any device so far; those who launch them count them here."""
        self._firsts: deque[Position] = deque(maxlen=2)

    def record_event(self, tick: int) -> Position:
        """Return the position of an event that is recorded now, in step `tick`."""
        position = Position(tick, self.launches)
        if not self._firsts or self._firsts[-1].tick != tick:
            self._firsts.append(position)
        return position

    def only_orders(self, recorded: Position, tick: int) -> bool:
        """Whether a wait in step `tick` for an event at `recorded` leaves the GPU enough to do.

        The event is of an earlier step, and most of a step's work was launched after it: by the time that it
        is waited for it is done as good as always, and if not, the GPU has work for long enough. In a loop
        that refills staging buffers or reads copies of earlier steps such a wait stalls nothing.
        """
        behind = self.launches - recorded.launches
        of_a_step = self._firsts[-1].launches - self._firsts[0].launches
        return tick != recorded.tick and behind > 0 and behind >= _QUEUED_SHARE * of_a_step
