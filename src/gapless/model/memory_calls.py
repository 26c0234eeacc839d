"""The time and number of calls to the driver."""

from __future__ import annotations

from typing import Literal

import msgspec

SIZE_CLASSES = (128 << 20, 256 << 20, 512 << 20)
"""Sizes in bytes up to which calls take about as long; larger ones are a further class."""
MALLOC_BY_SIZE = (113_000, 495_000, 4_071_000, 4_071_000)
"""Nanoseconds of a ``cudaMalloc`` in each class: medians of public recordings. Above 512 MiB there were too
few; they are taken to cost no less than those before."""


def size_class(size: int) -> int:
    """Return the index of the class of calls for `size` bytes."""
    return sum(size > top for top in SIZE_CLASSES)


class CallTimes(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The time of a driver call in nanoseconds: ``cudaMalloc``, ``cudaFree``, (un)mapping 20 MiB.

    `malloc` is for up to 128 MiB, `larger` for up to 256, up to 512, and more. `drain` is how long a retry
    waits until the GPU has finished its queue (-1: unknown). `source` is ``measured`` in this run or
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
        """Return the total time of the calls, given the number of each class."""
        return sum(count * time for count, time in zip(counts, (self.malloc, *self.larger), strict=True))


class DriverCalls(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Driver calls of one kind that a profile recorded: their number, and nanoseconds in all."""

    name: str
    count: int = 0
    time: int = 0
