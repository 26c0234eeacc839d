"""The largest value that fits, with few attempts, each of which is a run of the script."""

from __future__ import annotations

from collections.abc import Callable

from gapless.model.attempt import Attempt

_FURTHER = 4
"""A value that is tried is at most so many times the largest one that is known to fit."""
_SLOW = 2
"""Attempts in a row that may leave more than half of what is open, before the middle is tried."""


class Largest:
    """Looks for the largest of ``range(least, most + 1, by)`` that fits.

    What is needed grows about as the value does, so that the next value is the one at which a straight line
    through the last two attempts meets what there is; where that closes in too slowly, the middle. That
    larger values need more is not taken for granted: the value below the answer and the two above it are
    tried, and the search goes on from one of these that fits.

    >>> needs = lambda value: Attempt(what="", value=value, fits=value <= 37, needs=value * 10, has=379)
    >>> Largest(needs, 1, 256).go()
    37
    """

    def __init__(self, attempt: Callable[[int], Attempt], least: int, most: int, by: int = 1) -> None:
        self._attempt = attempt
        self._values = range(least, most + 1, by)
        self.seen: dict[int, Attempt] = {}

    def go(self) -> int:
        """The largest value that fits; -1 where the smallest does not."""
        if not self._fits(0):
            return -1
        low = self._bracketed(0)
        while True:
            for at in (low - 1, low + 2):
                if 0 <= at < len(self._values):
                    self._fits(at)
            higher = [at for at in range(len(self._values)) if at > low and self._known(at)]
            if not higher:
                return self._values[low]
            low = self._bracketed(max(higher))

    @property
    def holes(self) -> tuple[int, ...]:
        """Values that do not fit though a larger one does."""
        fitting = [value for value, one in self.seen.items() if one.fits]
        return tuple(
            sorted(
                value for value, one in self.seen.items() if not one.fits and value < max(fitting, default=0)
            )
        )

    def _fits(self, at: int) -> bool:
        value = self._values[at]
        if value not in self.seen:
            self.seen[value] = self._attempt(value)
        return self.seen[value].fits

    def _known(self, at: int) -> bool:
        one = self.seen.get(self._values[at])
        return one is not None and one.fits

    def _bracketed(self, low: int) -> int:
        """The position, from `low` on which fits, of one that fits before one that does not."""
        above = [at for at in range(low + 1, len(self._values)) if self._values[at] in self.seen]
        high = next((at for at in above if not self._known(at)), len(self._values))
        slow = 0
        while high - low > 1:
            open_before = high - low
            bounded = high < len(self._values)
            untold = bounded and self.seen[self._values[high]].needs < 0  # it failed for another reason
            middle = untold or (bounded and slow >= _SLOW)
            at = (low + high) // 2 if middle else self._guess(low, high)
            if self._fits(at):
                low = at
            else:
                high = at
            slow = slow + 1 if high - low > open_before / 2 else 0
        return low

    def _guess(self, low: int, high: int) -> int:
        """The position that is tried next, between `low` and `high`."""
        values, seen = self._values, self.seen
        furthest = min(high - 1, self._position(_FURTHER * max(values[low], 1)))
        known = sorted(value for value, one in seen.items() if one.needs >= 0)
        if len(known) < 2:
            return max(min(self._position(2 * max(values[low], 1)), high - 1), low + 1)
        first, second = known[-2:]
        if values[low] in known[:-2]:
            first, second = values[low], known[known.index(values[low]) + 1]
        slope = (seen[second].needs - seen[first].needs) / (second - first)
        has = seen[values[low]].has
        if slope <= 0 or has < 0:
            return max(furthest, low + 1)
        meets = values[low] + (has - seen[values[low]].needs) / slope
        return max(min(self._position(meets), furthest), low + 1)

    def _position(self, value: float) -> int:
        """The last position whose value is not above `value`."""
        return int(max(value - self._values.start, 0) // self._values.step)
