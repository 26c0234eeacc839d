"""Say in words for how many classes, labels or outputs a state is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class SizeMismatch(ValueError):
    """A saved state has another size than the state of the statistic that loads it."""


def describe_sizes(saved: str, own: str) -> str:
    """Say that a saved state is of another size than a metric."""
    return (
        f"the saved state is for {saved}, but this metric is for {own}: "
        "make it with the arguments that the other one was made with"
    )


class Breadth(NamedTuple):
    """What a state has a value for each of (``"class"``), their number, and the dimension they are along.

    >>> Breadth("class", 5).words((2, 6), own=(2, 8))
    '3 classes'
    """

    noun: str = ""
    number: int = 1
    dimension: int = -1

    def words(self, shape: Sequence[int], own: Sequence[int]) -> str:
        """Return the number in a state of this `shape` in words, if `own` is the shape for `number`; "" where
        the shapes differ otherwise.
        """
        shape, own = list(shape) or [1], list(own) or [1]
        if not self.noun or len(shape) != len(own):
            return ""
        number = self.number + shape.pop(self.dimension) - own.pop(self.dimension)
        if shape != own or number < 1:
            return ""
        plural = f"{self.noun[:-1]}ies" if self.noun.endswith("y") else f"{self.noun}es"
        plural = plural if self.noun.endswith(("s", "y")) else f"{self.noun}s"
        return f"{number} {self.noun if number == 1 else plural}"
