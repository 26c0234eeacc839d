"""The device's memory as the driver hands it out: so many bytes, at addresses of its own choice."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable

from gapless.memory.sizes import ROUND_LARGE

_BASE = 0x7F00_0000_0000
_SPACES = 0x7000_0000_0000
"""Where simulated address spaces begin: below all simulated segments."""
UNLIMITED = 1 << 60
VIRTUAL = 1 << 44
"""Address space of an expandable segment where the device's memory is unknown: more than any device has."""


class Driver:
    """``cudaMalloc`` and ``cudaFree``, with `capacity` bytes for this process.

    `recorded` are sizes and addresses that the real driver gave: a request is given the first of its size
    that is still free, so that a replay meets the recorded addresses. Where there is none, the address that
    was given back last and fits exactly, else a new one. `spaces` are the recorded addresses of expandable
    segments, by stream and pool.
    """

    __slots__ = (
        "_next",
        "_order",
        "_recorded",
        "_returned",
        "_space",
        "_spaces",
        "capacity",
        "taken",
        "used",
    )

    def __init__(
        self,
        capacity: int = UNLIMITED,
        recorded: Iterable[tuple[int, int]] = (),
        spaces: Iterable[tuple[int, int, int]] = (),
    ) -> None:
        self.capacity = capacity
        self.used = 0
        self.taken: dict[int, int] = {}
        self._next = _BASE
        self._order: list[int] = []
        self._space = _SPACES
        self._spaces: dict[tuple[int, int], deque[int]] = {}
        for stream, small, address in spaces:
            self._spaces.setdefault((stream, small), deque()).append(address)
            # What was not recorded lies behind all that was: no two spaces share an address.
            self._space = max(self._space, _up(address + VIRTUAL))
        self._returned: dict[int, list[int]] = {}
        self._recorded: dict[int, deque[int]] = {}
        for size, address in recorded:
            self._recorded.setdefault(size, deque()).append(address)
            self._next = max(self._next, _up(address + size))

    def adopt(self, address: int, size: int) -> None:
        """A segment that was there already."""
        self._take(address, size)
        self._next = max(self._next, _up(address + size))

    def malloc(self, size: int) -> int | None:
        """The address of `size` new bytes, or None where the device has no more."""
        if self.used + size > self.capacity:
            return None
        address = self._address(size)
        self._take(address, size)
        return address

    def free(self, address: int) -> None:
        size = self.taken.pop(address)
        del self._order[bisect_left(self._order, address)]
        self.used -= size
        self._returned.setdefault(size, []).append(address)

    def map(self, size: int) -> bool:
        """Memory for addresses that are reserved already."""
        if self.used + size > self.capacity:
            return False
        self.used += size
        return True

    def unmap(self, size: int) -> None:
        self.used -= size

    def recorded_space(self, stream: int, small: bool) -> int | None:
        """Where the real driver reserved addresses for this stream and pool; each is told once."""
        found = self._spaces.get((stream, int(small)))
        return found.popleft() if found else None

    def reserve(self, size: int) -> int:
        """Address space without memory."""
        address = self._space
        self._space += _up(size)
        return address

    def _address(self, size: int) -> int:
        recorded = self._recorded.get(size)
        while recorded:
            address = recorded.popleft()
            if self._vacant(address, size):
                return address
        returned = self._returned.get(size)
        while returned:
            address = returned.pop()
            if self._vacant(address, size):
                return address
        address = self._next
        self._next += _up(size)
        return address

    def _take(self, address: int, size: int) -> None:
        self.taken[address] = size
        self.used += size
        insort(self._order, address)

    def _vacant(self, address: int, size: int) -> bool:
        """Whether nothing lies there: another course of things may have put something else to that place."""
        at = bisect_left(self._order, address)
        if at < len(self._order) and self._order[at] < address + size:
            return False
        before = self._order[at - 1] if at else -1
        return before < 0 or before + self.taken[before] <= address


def _up(address: int) -> int:
    return -(-address // ROUND_LARGE) * ROUND_LARGE
