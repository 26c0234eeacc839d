"""Copies between pinned memory and the device that nothing has waited for yet."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from gapless.emulation.races import ranges
from gapless.emulation.races.clocks import Clocks
from gapless.emulation.races.content import digest
from gapless.emulation.races.ranges import Range

_MOST = 64
"""Copies of one storage that are followed."""


class Flight:
    """A copy that is under way: to the host where it `arrives`, from it else."""

    __slots__ = ("arrives", "bytes", "digest", "landed", "mark", "stack", "storage", "track")

    def __init__(self, storage: Any, where: Range, arrives: bool, track: int, mark: int, stack: Any) -> None:
        self.storage = weakref.ref(storage)
        self.bytes = where
        self.arrives = arrives
        self.track = track
        self.mark = mark
        self.stack = stack
        self.digest: int | None = None
        self.landed: np.ndarray | None = None


class Flights:
    """Copies under way, by the key of the pinned storage."""

    def __init__(
        self, clocks: Clocks, changed: Callable[[Flight], None], arrived: Callable[[Flight], None]
    ) -> None:
        self.busy: dict[int, list[Flight]] = {}
        self.digests = True
        self._clocks = clocks
        self._changed = changed
        self._arrived = arrived

    def began(self, host: torch.Tensor, arrives: bool, track: int, mark: int, stack: Any) -> Flight:
        """A copy of all of `host`, a pinned tensor, has been launched."""
        storage = host.untyped_storage()
        where = ranges.of(host)
        flight = Flight(storage, where, arrives, track, mark, stack)
        key = storage._cdata
        if key in self.busy:
            del self.busy[key][: 1 - _MOST]
        elif not arrives and self.digests:
            flight.digest = digest(storage, where)
        self.busy.setdefault(key, []).append(flight)
        return flight

    def over(self, flight: Flight) -> bool:
        """Whether the host knows that the copy is done."""
        return self._clocks.host[flight.track] >= flight.mark

    def under_way(self, key: int, where: Range) -> Iterator[Flight]:
        """Copies of these bytes of the storage with that key that may not be done, the last first."""
        for flight in reversed(self.busy.get(key, ())):
            if not self.over(flight) and flight.bytes.meets(where):
                yield flight

    def ended(self, key: int) -> None:
        """The storage is no more: torch's allocator of pinned memory keeps it until its copies are done."""
        self.busy.pop(key, None)

    def end(self) -> None:
        """Nobody waits any more: everything arrives."""
        for flights in self.busy.values():
            for flight in flights:
                self._arrived(flight)
        self.busy.clear()

    def host_waited(self) -> None:
        """The host has waited: forget what is done, and look whether its source is what it was."""
        for key, flights in list(self.busy.items()):
            left = []
            for flight in flights:
                storage = flight.storage()
                if storage is None:
                    continue
                if not self.over(flight):
                    left.append(flight)
                    continue
                self._arrived(flight)
                if flight.digest is not None and digest(storage, flight.bytes) != flight.digest:
                    self._changed(flight)
            if left:
                self.busy[key] = left
            else:
                del self.busy[key]
