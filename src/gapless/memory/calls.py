"""What a recorded run did with the device: calls, what was reserved, what was refused."""

from __future__ import annotations

from typing import Any

from gapless.memory.rewind import FREES
from gapless.memory.sizes import SMALL_SEGMENT
from gapless.memory.start import Start

MOST_FREE = 1 << 60


def most_reserved(trace: list[Any], reserved: int) -> int:
    """The most that was reserved at once."""
    most = reserved
    for entry in trace:
        if entry["action"] in ("segment_alloc", "segment_map"):
            reserved += entry["size"]
            most = max(most, reserved)
        elif entry["action"] in FREES:
            reserved -= entry["size"]
    return most


class Calls:
    """What the recorded run did with the device."""

    def __init__(self, start: Start) -> None:
        self.reserved = self.peak = reserved = start.reserved
        self.mallocs = self.frees = self.maps = self.unmaps = self.retries = self.ooms = 0
        self.segments: list[tuple[int, int]] = []
        self.spaces = Spaces(start)
        self.floor, self.ceiling, self.device_free = reserved, -1, -1
        self.releasing = False
        self.refusals: list[tuple[int, int]] = []
        self._before = reserved

    def alloc(self, entry: Any) -> None:
        self.mallocs += 1
        self.segments.append((entry["size"], entry["addr"]))
        self._grow(entry["size"])

    def map(self, entry: Any) -> None:
        self.maps += 1
        self.spaces.map(entry)
        self._grow(entry["size"])

    def _grow(self, size: int) -> None:
        self._retried(size)
        self.reserved += size
        self.peak = self.floor = max(self.peak, self.reserved)

    def _retried(self, size: int) -> None:
        """The request that memory was given back for had failed before."""
        if not self.releasing:
            return
        refused = self._before + size
        self.retries += 1
        self.ceiling = refused if self.ceiling < 0 else min(self.ceiling, refused)
        self.releasing = False

    def free(self, entry: Any, releasing: bool) -> None:
        if releasing and not self.releasing:
            self.releasing, self._before = True, self.reserved
        self.frees += entry["action"] == "segment_free"
        if entry["action"] == "segment_unmap":
            self.unmaps += 1
            self.spaces.unmap(entry)
        self.reserved -= entry["size"]

    def oom(self, entry: Any, asked: int) -> None:
        """`asked` bytes or fewer were refused even after all cached memory had been given back."""
        self.ooms += 1
        self.retries += 1
        self.releasing = False
        refused = self.reserved + asked
        self.ceiling = refused if self.ceiling < 0 else min(self.ceiling, refused)
        told = entry.get("device_free")
        free = told if type(told) is int and 0 <= told < MOST_FREE else -1
        self.refusals.append((self.reserved, free))
        if free >= 0:
            self.device_free = max(self.device_free, self.reserved + free)

    def served(self) -> None:
        self.releasing = False


class Spaces:
    """Where the addresses of expandable segments begin.

    There is one for each stream and pool at a time. When nothing is mapped to it any more, it is given up.
    `found` are stream, pool (1: small) and first address, in order.
    """

    def __init__(self, start: Start) -> None:
        self.found: list[list[int]] = []
        self._open: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
        for home in start.rewind.ranges.values():
            if home.expandable:
                self._mapped(home.stream, int(home.small), home.address, home.size)

    def map(self, entry: Any) -> None:
        small = int(entry["size"] <= SMALL_SEGMENT)
        self._mapped(entry["stream"], small, entry["addr"], entry["size"])

    def _mapped(self, stream: int, small: int, address: int, size: int) -> None:
        key = stream, small
        if key not in self._open:
            space = [stream, small, address]
            self.found.append(space)
            self._open[key] = space, [0]
        space, mapped = self._open[key]
        space[2] = min(space[2], address)
        mapped[0] += size

    def unmap(self, entry: Any) -> None:
        """The space is told by its address: both pools' pages may be of that size."""
        keys = [
            key
            for key, (space, _) in self._open.items()
            if key[0] == entry["stream"] and space[2] <= entry["addr"]
        ]
        if not keys:
            return
        key = max(keys, key=lambda one: self._open[one][0][2])
        mapped = self._open[key][1]
        mapped[0] -= entry["size"]
        if mapped[0] <= 0:
            del self._open[key]
