"""Check every saved value: numbers whose sums do not overflow, and no endless text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

MAX_NUMBER = 1 << 60
"""Limit of sizes and times: 36 years in nanoseconds, and more bytes than any machine has."""
MAX_ADDRESS = 1 << 64
"""Limit of addresses and clock times, which are never summed."""
_ADDRESSES = frozenset({"address", "stream", "origin", "began", "segments", "spaces"})
_SIGNED = frozenset({"number", "status"})
"""Fields that may be negative: numbers of collectives issued before recording, and exit statuses."""
_MAX_TEXT_LENGTH = 1 << 20
"""Characters of the longest text: a source line, a path, a compiler's message."""


def find_problem(value: Any, least: float) -> str:
    """Return what is wrong with the numbers and texts of `value`, a loaded struct; "" if nothing is.

    Numbers are at least `least`; -1 stands for unknown.
    """
    return _SoundnessCheck(least).problem(value, type(value).__name__, MAX_NUMBER)


class _SoundnessCheck:
    def __init__(self, least: float) -> None:
        self._least = least

    def problem(self, value: Any, where: str, most: int) -> str:
        """Return what is wrong with `value`, which is called `where` and must be below `most`."""
        kind = type(value)
        if kind is int or kind is float:
            least = -MAX_NUMBER if where in _SIGNED else self._least
            return "" if least <= value < most else f"{where} is {_abbreviate(value)}"
        if kind is str:
            return "" if len(value) <= _MAX_TEXT_LENGTH else f"{where} has {len(value):,} characters"
        if kind is tuple or kind is list:
            return self._column_problem(value, where, most)
        if kind is dict:
            return self._first_problem((item, f"{where}.{key}"[:80]) for key, item in value.items())
        if isinstance(value, msgspec.Struct):
            return self._first_problem((getattr(value, name), name) for name in value.__struct_fields__)
        return ""

    def _first_problem(self, items: Iterable[tuple[Any, str]]) -> str:
        for item, where in items:
            defect = self.problem(item, where, MAX_ADDRESS if where in _ADDRESSES else MAX_NUMBER)
            if defect:
                return defect
        return ""

    def _column_problem(self, values: Sequence[Any], where: str, most: int) -> str:
        """Do as `problem`, but quickly if all values are numbers."""
        kinds = set(map(type, values))
        if values and (kinds <= {int} or kinds <= {float}):
            return self.problem(min(values), where, most) or self.problem(max(values), where, most)
        return next(filter(None, (self.problem(item, where, most) for item in values)), "")


def _abbreviate(value: float) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:20]}…"
