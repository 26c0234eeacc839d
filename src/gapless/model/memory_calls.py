"""The time and number of calls to the driver."""

from __future__ import annotations

from typing import Literal

import msgspec

SIZE_CLASSES = (128 << 20, 256 << 20, 512 << 20)
"""Sizes in bytes up to which calls take about as long; larger ones are a class of their own."""
MALLOC_BY_SIZE = (113_000, 495_000, 4_071_000, 4_071_000)
"""Nanoseconds of a ``cudaMalloc`` in each class: medians of public recordings. Above 512 MiB there were too
few; they are taken to cost no less than those before."""


def size_class(size: int) -> int:
    """Return the index of the class of calls for `size` bytes."""
    return sum(size > top for top in SIZE_CLASSES)


class CallTimes(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a call to the driver takes, nanoseconds: ``cudaMalloc``, ``cudaFree``, (un)mapping 20 MiB.

    `malloc` is for up to 128 MiB, `larger` for up to 256, up to 512 and more. `drain` is what a retry waits
    until the GPU has done what is queued (-1: not known). `source` is ``measured`` on this run or
    ``typical``, from other machines.
    """

    malloc: int = MALLOC_BY_SIZE[0]
    free: int = 89_000
    map: int = 200_000
    unmap: int = 200_000
    larger: tuple[int, int, int] = MALLOC_BY_SIZE[1:]
    drain: int = -1
    source: Literal["measured", "typical"] = "typical"

    def mallocs(self, counts: tuple[int, ...]) -> int:
        """Return the time of that many calls of each class together."""
        return sum(count * time for count, time in zip(counts, (self.malloc, *self.larger), strict=True))


class DriverCalls(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Calls of one kind to the driver that a profile recorded: how many, and nanoseconds in all."""

    name: str
    count: int = 0
    time: int = 0
