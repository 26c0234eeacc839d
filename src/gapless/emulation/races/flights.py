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
from gapless.emulation.races.ranges import ByteRange

_MAX_FLIGHTS = 64
"""Pending copies followed per storage, to bound the search."""


class Flight:
    """A pending copy: to the host if it `arrives`, else from the host."""

    __slots__ = ("arrives", "bytes", "digest", "late_bytes", "launches", "mark", "stack", "storage", "track")

    def __init__(
        self, storage: Any, where: ByteRange, arrives: bool, track: int, mark: int, stack: Any
    ) -> None:
        self.storage = weakref.ref(storage)
        self.bytes = where
        self.arrives = arrives
        self.track = track
        self.mark = mark
        self.stack = stack
        self.digest: int | None = None
        self.launches = 0  # operators launched before
        self.late_bytes: np.ndarray | None = None


class Flights:
    """Pending copies by the key of the pinned storage."""

    def __init__(
        self, clocks: Clocks, changed: Callable[[Flight], None], arrived: Callable[[Flight], None]
    ) -> None:
        self.busy: dict[int, list[Flight]] = {}
        self.digests = True
        self._clocks = clocks
        self._on_changed_source = changed
        self._on_arrival = arrived

    def add(self, host: torch.Tensor, arrives: bool, track: int, mark: int, stack: Any) -> Flight:
        """Add a launched copy of the pinned tensor `host`."""
        storage = host.untyped_storage()
        where = ranges.of(host)
        flight = Flight(storage, where, arrives, track, mark, stack)
        key = storage._cdata
        if key in self.busy:
            del self.busy[key][: 1 - _MAX_FLIGHTS]
        elif not arrives and self.digests:
            flight.digest = digest(storage, where)
        self.busy.setdefault(key, []).append(flight)
        return flight

    def is_done(self, flight: Flight) -> bool:
        """Whether the host knows that the copy is done."""
        return self._clocks.host[flight.track] >= flight.mark

    def any_right_before(self, launches: int) -> bool:
        """Whether one that may not be done was the last work when `launches` operators had been launched."""
        return any(
            flight.launches == launches and not self.is_done(flight)
            for flights in self.busy.values()
            for flight in flights
        )

    def under_way(self, key: int, where: ByteRange) -> Iterator[Flight]:
        """Yield copies of bytes `where` of a storage that may not be done, the latest first."""
        for flight in reversed(self.busy.get(key, ())):
            if not self.is_done(flight) and flight.bytes.meets(where):
                yield flight

    def remove(self, key: int) -> None:
        """Forget the copies of a freed storage: torch's pinned allocator keeps it until they are done."""
        self.busy.pop(key, None)

    def end(self) -> None:
        """Complete all copies at the end of the emulation."""
        for flights in self.busy.values():
            for flight in flights:
                self._on_arrival(flight)
        self.busy.clear()

    def settle(self) -> None:
        """Forget copies done after a wait of the host, and report those whose source has changed."""
        for key, flights in list(self.busy.items()):
            left = []
            for flight in flights:
                storage = flight.storage()
                if storage is None:
                    continue
                if not self.is_done(flight):
                    left.append(flight)
                    continue
                self._on_arrival(flight)
                if flight.digest is not None and digest(storage, flight.bytes) != flight.digest:
                    self._on_changed_source(flight)
            if left:
                self.busy[key] = left
            else:
                del self.busy[key]
