"""`Lanes`: a timeline thinned for drawing: some hundred kilobytes for a profile of any size."""

from __future__ import annotations

from typing import Literal

import msgspec

LaneKind = Literal["idle", "stream", "thread", "waits"]
"""What a lane shows.

- ``idle``: when and why the device is idle;
- ``stream``: the work of one stream of the device;
- ``thread``: what one host thread runs, nested spans;
- ``waits``: the calls in which that thread waits for the device.
"""


class Lane(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One lane, `rows` high. Lanes of one host thread have the same `name` and are neighbours."""

    kind: LaneKind
    name: str
    rows: int = 1


class Boxes(msgspec.Struct, frozen=True, array_like=True):
    """The boxes of one row of one lane, in order, in columns of equal length.

    - `start`: nanoseconds from the start of the previous box (of the first: of the window); `length`: to the
      box's end.
    - `what`: positions in `Lanes.names`; in lanes of ``waits`` in `Profile.costs`.
    - `count`: spans merged into a box; `busy`: how much of its length they fill.
    - `launch`: for single boxes of a ``stream``, nanoseconds from the launching call's start to the box;
      `thread`: the lane of that call (-1: unknown). Both are empty if none is known.
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


class LaneWindow(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The boxes from `start` to `end`, in nanoseconds since the profile's first event.

    Neighbours shorter and closer than `finest` are merged into one box; 0 if nothing is merged.
    """

    start: int
    end: int
    finest: int = 0
    boxes: tuple[Boxes, ...] = ()


class Lanes(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A profile's timeline, thinned.

    - `windows`: the first is the whole profile, coarse; the others lie in it, longest first and ever finer:
      around findings, and one usual step.
    - `names`: names of boxes; `kinds`: for each ``operator``, ``call``, ``frame``, ``annotation``,
      ``kernel``, ``communication``, ``copy``, or a cause of idle time.
    - `busy`: percent of each of equal parts of the profile in which the device computes or copies.
    - `left_out`: what is not drawn, in words.
    """

    lanes: tuple[Lane, ...] = ()
    names: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    windows: tuple[LaneWindow, ...] = ()
    busy: tuple[int, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def boxes(self) -> int:
        """The total number of boxes."""
        return sum(len(row.start) for window in self.windows for row in window.boxes)
