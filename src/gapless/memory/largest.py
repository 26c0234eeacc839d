"""Find the largest value that fits with few attempts, each of which is a run of the script."""

from __future__ import annotations

from collections.abc import Callable

from gapless.model.attempt import Attempt

_MAX_GROWTH = 4
"""A value is tried only up to this multiple of the largest one that fits."""
_MAX_SLOW_ATTEMPTS = 2
"""Attempts in a row that leave more than half of the interval open before bisection is used."""


class LargestSearch:
    """Finds the largest of ``range(least, most + 1, by)`` that fits.

    Memory grows about linearly with the value, so the next value is where a line through the last two
    attempts meets the limit, or the middle if that converges too slowly. Memory need not be monotonic: the
    value below the answer and the two above it are tried too, and if one fits the search goes on from there.

    >>> needs = lambda value: Attempt(what="", value=value, fits=value <= 37, needs=value * 10, has=379)
        >>> LargestSearch(needs, 1, 256).run()
        37
    """

    def __init__(self, attempt: Callable[[int], Attempt], least: int, most: int, by: int = 1) -> None:
        self._attempt = attempt
        self._values = range(least, most + 1, by)
        self.attempts: dict[int, Attempt] = {}

    def run(self) -> int:
        """Return the largest value that fits; -1 if the smallest does not."""
        if not self._fits(0):
            return -1
        low = self._last_fitting_from(0)
        while True:
            for at in (low - 1, low + 2):
                if 0 <= at < len(self._values):
                    self._fits(at)
            higher = [at for at in range(len(self._values)) if at > low and self._is_fitting(at)]
            if not higher:
                return self._values[low]
            low = self._last_fitting_from(max(higher))

    @property
    def holes(self) -> tuple[int, ...]:
        """Values that do not fit although a larger one does."""
        fitting = [value for value, attempt in self.attempts.items() if attempt.fits]
        return tuple(
            sorted(
                value
                for value, attempt in self.attempts.items()
                if not attempt.fits and value < max(fitting, default=0)
            )
        )

    def _fits(self, at: int) -> bool:
        value = self._values[at]
        if value not in self.attempts:
            self.attempts[value] = self._attempt(value)
        return self.attempts[value].fits

    def _is_fitting(self, at: int) -> bool:
        attempt = self.attempts.get(self._values[at])
        return attempt is not None and attempt.fits

    def _last_fitting_from(self, low: int) -> int:
        """Return an index that fits and whose successor does not, starting from `low`, which fits."""
        above = [at for at in range(low + 1, len(self._values)) if self._values[at] in self.attempts]
        high = next((at for at in above if not self._is_fitting(at)), len(self._values))
        slow = 0
        while high - low > 1:
            open_before = high - low
            bounded = high < len(self._values)
            is_other_failure = (
                bounded and self.attempts[self._values[high]].needs < 0
            )  # it failed for another reason
            middle = is_other_failure or (bounded and slow >= _MAX_SLOW_ATTEMPTS)
            at = (low + high) // 2 if middle else self._next_index(low, high)
            if self._fits(at):
                low = at
            else:
                high = at
            slow = slow + 1 if high - low > open_before / 2 else 0
        return low

    def _next_index(self, low: int, high: int) -> int:
        """Return the index to try next, between `low` and `high`."""
        values, attempts = self._values, self.attempts
        furthest = min(high - 1, self._index_of(_MAX_GROWTH * max(values[low], 1)))
        measured = sorted(value for value, attempt in attempts.items() if attempt.needs >= 0)
        if len(measured) < 2:
            return max(min(self._index_of(2 * max(values[low], 1)), high - 1), low + 1)
        first, second = measured[-2:]
        if values[low] in measured[:-2]:
            first, second = values[low], measured[measured.index(values[low]) + 1]
        slope = (attempts[second].needs - attempts[first].needs) / (second - first)
        has = attempts[values[low]].has
        if slope <= 0 or has < 0:
            return max(furthest, low + 1)
        meets = values[low] + (has - attempts[values[low]].needs) / slope
        return max(min(self._index_of(meets), furthest), low + 1)

    def _index_of(self, value: float) -> int:
        """Return the last index whose value is at most `value`."""
        return int(max(value - self._values.start, 0) // self._values.step)
