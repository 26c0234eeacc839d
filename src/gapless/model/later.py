"""`Later`: sums over what a long run did after the steps that are kept individually."""

from __future__ import annotations

import msgspec

from gapless.model.event import Event


class MarkCount(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How often a mark of this `kind` and `name` occurred."""

    kind: str
    name: str = ""
    count: int = 0


class Later(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What followed the marks of a session, only in sums: records of each step of a long run would have no
    bound.

    `ticks` counts the marks that advance the tick. `events` have the total waits of each site and phase, with
    the tick and the time of the first.

    >>> Later(ticks=2, events=(Event(site=0, tick=7, waits=3),)).waits
    3
    """

    ticks: int = 0
    marks: tuple[MarkCount, ...] = ()
    events: tuple[Event, ...] = ()

    @property
    def waits(self) -> int:
        return sum(event.waits for event in self.events)
