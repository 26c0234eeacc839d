"""Replay the driver calls of a recorded run: memory reserved, released and refused."""

from __future__ import annotations

from typing import Any

from gapless.memory.rewind import FREES
from gapless.memory.sizes import SMALL_SEGMENT
from gapless.memory.start import StartState

MAX_FREE_BYTES = 1 << 60
"""Larger values of ``device_free`` are no sizes."""


def peak_reserved(trace: list[Any], reserved: int) -> int:
    """Return the largest number of bytes reserved at once, starting from `reserved`."""
    peak = reserved
    for entry in trace:
        if entry["action"] in ("segment_alloc", "segment_map"):
            reserved += entry["size"]
            peak = max(peak, reserved)
        elif entry["action"] in FREES:
            reserved -= entry["size"]
    return peak


class DriverCallCounter:
    """Counts driver calls, and bounds the memory that this process could get.

    `floor` is the most that was reserved; `ceiling` the least that was refused; `device_free` the most that
    the process had or could get when a request failed; the last two are -1 if unknown.
    """

    def __init__(self, start: StartState) -> None:
        self.reserved = self.peak = reserved = start.reserved
        self.mallocs = self.frees = self.maps = self.unmaps = self.retries = self.ooms = 0
        self.segments: list[tuple[int, int]] = []
        self.spaces = RecordedSpaces(start)
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
        self._count_retry(size)
        self.reserved += size
        self.peak = self.floor = max(self.peak, self.reserved)

    def _count_retry(self, size: int) -> None:
        """Count a retry if cached memory was released before: the request for `size` more bytes had
        failed.
        """
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

    def oom(self, entry: Any, needed: int) -> None:
        """Record a failed request: `needed` bytes or fewer were refused although no cached memory was
        left.
        """
        self.ooms += 1
        self.retries += 1
        self.releasing = False
        refused = self.reserved + needed
        self.ceiling = refused if self.ceiling < 0 else min(self.ceiling, refused)
        device_free = entry.get("device_free")
        free = device_free if type(device_free) is int and 0 <= device_free < MAX_FREE_BYTES else -1
        self.refusals.append((self.reserved, free))
        if free >= 0:
            self.device_free = max(self.device_free, self.reserved + free)

    def end_release(self) -> None:
        self.releasing = False


class RecordedSpaces:
    """First addresses of the expandable segments of a run.

    Each stream and pool has one at a time; it is given up when nothing is mapped to it. Entries of
    `first_addresses` are stream, pool (1: small) and address.
    """

    def __init__(self, start: StartState) -> None:
        self.first_addresses: list[list[int]] = []
        self._open: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
        for home in start.rewind.ranges.values():
            if home.expandable:
                self._add_mapping(home.stream, int(home.small), home.address, home.size)

    def map(self, entry: Any) -> None:
        small = int(entry["size"] <= SMALL_SEGMENT)
        self._add_mapping(entry["stream"], small, entry["addr"], entry["size"])

    def _add_mapping(self, stream: int, small: int, address: int, size: int) -> None:
        key = stream, small
        if key not in self._open:
            space = [stream, small, address]
            self.first_addresses.append(space)
            self._open[key] = space, [0]
        space, mapped = self._open[key]
        space[2] = min(space[2], address)
        mapped[0] += size

    def unmap(self, entry: Any) -> None:
        """Count pages as unmapped; find their space by address, as pages of both pools may have this size."""
        keys = [
            key
            for key, (space, _) in self._open.items()
            if key[0] == entry["stream"] and space[2] <= entry["addr"]
        ]
        if not keys:
            return
        key = max(keys, key=lambda key: self._open[key][0][2])
        mapped = self._open[key][1]
        mapped[0] -= entry["size"]
        if mapped[0] <= 0:
            del self._open[key]
