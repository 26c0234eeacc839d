"""What every saved value must be, whatever it means: numbers whose sums do not overflow, no endless text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

MOST = 1 << 60
"""Bound of sizes and times: 36 years of nanoseconds, and more bytes than any machine has."""
MOST_ADDRESS = 1 << 64
"""Bound of what names a place or a moment on a clock of its own, and is never summed."""
_ADDRESSES = frozenset({"address", "stream", "origin", "began", "segments", "spaces"})
_SIGNED = frozenset({"number", "status"})
"""What may be negative and means it: collectives that were issued before, and exit statuses."""
_LONGEST = 1 << 20
"""Characters of the longest text: a line of source, a path, a message of a compiler."""


def problem(value: Any, least: float) -> str:
    """What is wrong with the numbers and texts in `value`, a struct as it was loaded; "" where nothing is.

    Numbers are no less than `least`: -1 stands for what is not known.
    """
    return _Check(least).problem(value, type(value).__name__, MOST)


class _Check:
    def __init__(self, least: float) -> None:
        self._least = least

    def problem(self, value: Any, where: str, most: int) -> str:
        """What is wrong with `value`, which is called `where` and has to be less than `most`."""
        kind = type(value)
        if kind is int or kind is float:
            least = -MOST if where in _SIGNED else self._least
            return "" if least <= value < most else f"{where} is {_shown(value)}"
        if kind is str:
            return "" if len(value) <= _LONGEST else f"{where} has {len(value):,} characters"
        if kind is tuple or kind is list:
            return self._of_column(value, where, most)
        if kind is dict:
            return self._first((item, f"{where}.{key}"[:80]) for key, item in value.items())
        if isinstance(value, msgspec.Struct):
            return self._first((getattr(value, name), name) for name in value.__struct_fields__)
        return ""

    def _first(self, items: Iterable[tuple[Any, str]]) -> str:
        for item, where in items:
            found = self.problem(item, where, MOST_ADDRESS if where in _ADDRESSES else MOST)
            if found:
                return found
        return ""

    def _of_column(self, values: Sequence[Any], where: str, most: int) -> str:
        """As `problem`, quickly where all of many values are numbers."""
        kinds = set(map(type, values))
        if values and (kinds <= {int} or kinds <= {float}):
            return self.problem(min(values), where, most) or self.problem(max(values), where, most)
        return next(filter(None, (self.problem(item, where, most) for item in values)), "")


def _shown(value: float) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:20]}…"
