"""The GPU driver: hands out device memory at addresses of its own choice."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable

from gapless.memory.sizes import ROUND_LARGE

_FIRST_SEGMENT = 0x7F00_0000_0000
"""Where simulated segments begin: high in the user's address space, as with the real driver."""
_FIRST_SPACE = 0x1000_0000_0000
"""Where simulated address spaces begin: below all simulated segments, while there is room."""
UNLIMITED = 1 << 60
"""Bytes of a device without a limit."""
VIRTUAL = 1 << 41
"""Bytes of an expandable segment's address space at most: more than any device has."""


class Driver:
    """``cudaMalloc`` and ``cudaFree`` with `capacity` bytes for this process.

    `recorded` are sizes and addresses from the real driver: a request gets the first of its size that is
    still free, so that a replay meets the recorded addresses. If there is none, it gets the last returned
    address of exactly its size, else a new one. `spaces` are the recorded addresses of expandable segments,
    with stream and pool. New addresses overlap neither each other nor recorded ones.
    """

    __slots__ = (
        "_next",
        "_next_space",
        "_order",
        "_recorded",
        "_returned",
        "_space_starts",
        "_spaces",
        "_spaces_end",
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
        self._next = _FIRST_SEGMENT
        self._order: list[int] = []
        self._next_space, self._spaces_end = _FIRST_SPACE, _FIRST_SEGMENT
        spaces = tuple(spaces)
        self._space_starts = sorted(address for _, _, address in spaces)
        self._spaces: dict[tuple[int, int], deque[int]] = {}
        for stream, small, address in spaces:
            self._spaces.setdefault((stream, small), deque()).append(address)
            self.occupy(address, VIRTUAL)
            self._next_space = max(self._next_space, _round_up(address + VIRTUAL))
        self._returned: dict[int, list[int]] = {}
        self._recorded: dict[int, deque[int]] = {}
        for size, address in recorded:
            self._recorded.setdefault(size, deque()).append(address)
            self.occupy(address, size)

    def occupy(self, address: int, size: int) -> None:
        """Hand out no new address in this range."""
        end = _round_up(address + size)
        self._next = max(self._next, end)
        if address > self._next_space:
            self._spaces_end = min(self._spaces_end, address)
        else:
            self._next_space = max(self._next_space, end)

    def adopt(self, address: int, size: int) -> None:
        """Register a segment that exists already."""
        self._take(address, size)
        self.occupy(address, size)

    def malloc(self, size: int) -> int | None:
        """Return the address of `size` new bytes; None if the device has no more."""
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
        """Commit memory to reserved addresses; False if the device has no more."""
        if self.used + size > self.capacity:
            return False
        self.used += size
        return True

    def unmap(self, size: int) -> None:
        self.used -= size

    def recorded_space(self, stream: int, small: bool) -> int | None:
        """Return the next recorded address space of this stream and pool, each once; None if used up."""
        addresses = self._spaces.get((stream, int(small)))
        return addresses.popleft() if addresses else None

    def room_at(self, address: int) -> int:
        """Return how many bytes lie between `address` and the next recorded address space.

        Recordings do not say how large spaces are: a multiple of all memory, which they do not tell either.
        """
        following = bisect_right(self._space_starts, address)
        return self._space_starts[following] - address if following < len(self._space_starts) else VIRTUAL

    def reserve(self, size: int) -> int:
        """Reserve address space without memory; return its address."""
        address, end = self._next_space, self._next_space + _round_up(size)
        if end > self._spaces_end:
            return self._new_address(size)
        self._next_space = end
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
        return self._new_address(size)

    def _new_address(self, size: int) -> int:
        """Return an address behind all others."""
        address = self._next
        self._next += _round_up(size)
        return address

    def _take(self, address: int, size: int) -> None:
        self.taken[address] = size
        self.used += size
        insort(self._order, address)

    def _vacant(self, address: int, size: int) -> bool:
        """Whether the range is unused: if events differ from the recording, something else may lie there."""
        at = bisect_left(self._order, address)
        if at < len(self._order) and self._order[at] < address + size:
            return False
        before = self._order[at - 1] if at else -1
        return before < 0 or before + self.taken[before] <= address


def _round_up(address: int) -> int:
    return -(-address // ROUND_LARGE) * ROUND_LARGE
