"""Number values that occur repeatedly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


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
