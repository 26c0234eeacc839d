"""Numbers for values that occur again and again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


class Codes(dict[Any, int]):
    """Numbers for values, in order of appearance."""

    def __missing__(self, value: Any) -> int:
        number = self[value] = len(self)
        return number

    def of(self, values: Iterable[Any], count: int) -> Any:
        """The number of each value."""
        return np.fromiter(map(self.__getitem__, values), np.int32, count)


class ThreadCodes(Codes):
    """Numbers for threads: "7" and 7 are the same, as the oldest files write both."""

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
