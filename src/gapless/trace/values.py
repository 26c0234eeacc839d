"""Turn arguments of many events into columns of numbers, and repeated values into their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from gapless.trace.events import Args, to_integer
from gapless.trace.timeline import Floats, Ints


def column(args: list[Args], name: str) -> Ints:
    """Return one argument of all events as integers, whatever types the file has."""
    return to_integers(args, attrgetter(name))


def to_integers(rows: Sequence[Any], get: Callable[[Any], Any]) -> Ints:
    """Return ``get(row)`` of each row as integers."""
    try:
        return np.fromiter(map(get, rows), np.int64, len(rows))
    except (TypeError, ValueError, OverflowError):
        return np.fromiter((to_integer(get(row)) for row in rows), np.int64, len(rows))


def device_column(args: list[Args], name: str) -> Ints:
    """Return the numbers of devices or streams; -1 for those the profiler does not know."""
    numbers = column(args, name)
    numbers[numbers == 0xFFFFFFFF] = -1
    return numbers


def external_ids(args: list[Args]) -> Ints:
    """Return the external id of each event, under either of its names."""
    ids = column(args, "external_id")
    if (ids < 0).any():
        ids = np.where(ids < 0, column(args, "external_id_old"), ids)
    return ids


def to_floats(values: list[Any]) -> Floats:
    """Return the values as finite floats, -1 for the others."""
    try:
        floats: Floats = np.fromiter(values, np.float64, len(values))
    except (TypeError, ValueError):  # "inf" blocks per SM
        floats = np.array([value if isinstance(value, float) else -1.0 for value in values])
    return np.where(np.isfinite(floats), floats, -1.0)


class Codes(dict[Any, int]):
    """Numbers values in order of appearance."""

    def __missing__(self, value: Any) -> int:
        number = self[value] = len(self)
        return number

    def of(self, values: Iterable[Any], count: int) -> Any:
        """Return the number of each of `count` values."""
        return np.fromiter(map(self.__getitem__, values), np.int32, count)


class ThreadCodes(Codes):
    """Numbers threads; "7" and 7 are the same thread, as the oldest files write both."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[tuple[str, str]] = []

    def __missing__(self, value: Any) -> int:
        key = (str(value[0]), str(value[1]))
        if value == key:
            number = self[key] = len(self.threads)
            self.threads.append(key)
            return number
        number = self[value] = self[key]
        return number
