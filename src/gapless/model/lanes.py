"""`Lanes`: a timeline thin enough to be drawn, some hundred kilobytes for a profile of any size."""

from __future__ import annotations

from typing import Literal

import msgspec

LaneKind = Literal["idle", "stream", "thread", "waits"]
"""What a lane shows.

- ``idle``: when the device has nothing to do, and why;
- ``stream``: the work of one stream of the device;
- ``thread``: what one thread of the host runs, spans within spans;
- ``waits``: the calls in which that thread waits for the device.
"""


class Lane(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One lane, `rows` high. Lanes of one host thread have the same `name` and follow one another."""

    kind: LaneKind
    name: str
    rows: int = 1


class Boxes(msgspec.Struct, frozen=True, array_like=True):
    """The boxes of one row of one lane, in order, in columns of equal length.

    `start` are nanoseconds since the start of the box before (of the first: since the window's), `length` is
    to the box's end. `what` are positions in `Lanes.names`, of ``waits`` in `Profile.costs`. `count` says how
    many spans a box stands for, `busy` how much of its length they take; a single one is told in full.
    Of single boxes of a ``stream``, `launch` is how many nanoseconds before the box the call began that
    launched it, and `thread` the lane of that call (-1: not known); both are empty where none is known.
    """

    lane: int
    row: int
    start: tuple[int, ...]
    length: tuple[int, ...]
    what: tuple[int, ...]
    count: tuple[int, ...]
    busy: tuple[int, ...]
    launch: tuple[int, ...] = ()
    thread: tuple[int, ...] = ()


class Window(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What happened from `start` to `end`, in nanoseconds since the profile's first event.

    Neighbours shorter than `finest` and closer than that are one box; 0 where every span is told.
    """

    start: int
    end: int
    finest: int = 0
    boxes: tuple[Boxes, ...] = ()


class Lanes(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A profile's timeline, thinned.

    The first of `windows` is the whole profile, coarse; the others lie in it, the longest first, each finer
    than those it lies in: where something was found, and one usual step.
    `names` are what boxes are called and `kinds`, beside them, what they are: ``operator``, ``call``,
    ``frame``, ``annotation``, ``kernel``, ``communication``, ``copy``, or a cause of idleness. `busy` is the
    share of equal parts of the whole (percent) in which the device computes or copies. `left_out` says what
    was not drawn, in words.
    """

    lanes: tuple[Lane, ...] = ()
    names: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    windows: tuple[Window, ...] = ()
    busy: tuple[int, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def boxes(self) -> int:
        """The total number of boxes."""
        return sum(len(row.start) for window in self.windows for row in window.boxes)
