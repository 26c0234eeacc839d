"""`Guess`: what the values in a storage are like, where there are none."""

from __future__ import annotations

import math
from functools import cache

import torch

_INFINITE = math.inf


class Guess:
    """Each element is drawn from a Gaussian of this `mean` and `spread`, and lies from `low` to `high`.

    A bool's mean is the probability that it is true. `exact` says that it is no guess: all elements are
    `mean`. `filled` says that the storage holds values, which were made up. `compares` marks the results of
    comparisons of numbers, which people assert. `total` is what all elements of the storage add up to, where
    that is known though they are not: counts. `maker` is what made the values, `source` what made those.
    """

    __slots__ = ("compares", "exact", "filled", "high", "low", "maker", "mean", "source", "spread", "total")

    def __init__(
        self, mean: float = 0.0, spread: float = 1.0, low: float = -_INFINITE, high: float = _INFINITE
    ) -> None:
        self.mean, self.spread, self.low, self.high = mean, spread, low, high
        self.exact = self.compares = self.filled = False
        self.total: int | None = None
        self.maker = self.source = ""

    def as_filled(self) -> Guess:
        """The same of a storage that holds values which were made up."""
        found = Guess(self.mean, self.spread, self.low, self.high)
        found.compares, found.maker, found.source = self.compares, self.maker, self.source
        found.filled = True
        return found

    @property
    def made_by(self) -> str:
        """``mean of nll_loss``, for a report."""
        return f"{self.maker} of {self.source}" if self.source else self.maker

    def __repr__(self) -> str:
        return f"Guess({self.mean:.4g} ± {self.spread:.3g}, {self.low:.4g} to {self.high:.4g})"


def constant(value: float) -> Guess:
    """All elements are `value`, and that is known."""
    made = Guess(value, 0.0, value, value)
    made.exact = True
    return made


def between(low: float, high: float) -> Guess:
    """Whole numbers from `low` to `high`, each as likely as the others."""
    return Guess((low + high) / 2, (high - low + 1) / math.sqrt(12), low, high)


def chance(p: float) -> Guess:
    """Bools that are true with probability `p`."""
    p = min(1.0, max(0.0, p))
    return Guess(p, math.sqrt(p * (1 - p)), 0.0, 1.0)


@cache
def anything(maker: str, dtype: torch.dtype) -> Guess:
    """Nothing is known but the type: bools as likely as not, numbers around 0, whole ones around 1."""
    if dtype is torch.bool:
        made = chance(0.5)
    elif dtype.is_floating_point or dtype.is_complex:
        made = Guess()
    else:
        made = Guess(1.0, 1.0, 0.0 if dtype is torch.uint8 else -_INFINITE)
    made.maker = maker
    return made


def below(a: Guess, b: Guess) -> float:
    """The probability that an element of `a` is less than one of `b`; what cannot be is told from bounds."""
    if a.high < b.low:
        return 1.0
    if a.low >= b.high:
        return 0.0
    spread = math.hypot(a.spread, b.spread)
    if spread == 0 or not math.isfinite(spread):
        return 1.0 if a.mean < b.mean else 0.0
    return 0.5 * (1 + math.erf(max(-30.0, min(30.0, (b.mean - a.mean) / spread)) / math.sqrt(2)))


def mixed(a: Guess, b: Guess, share: float) -> Guess:
    """Elements of `b` for this `share` of all, of `a` for the rest."""
    if a.exact and b.exact and a.mean == b.mean:
        return constant(a.mean)
    mean = (1 - share) * a.mean + share * b.mean if math.isfinite(a.mean + b.mean) else b.mean
    apart = (a.mean - b.mean) ** 2 if math.isfinite(a.mean - b.mean) else 0.0
    variance = (1 - share) * a.spread**2 + share * b.spread**2 + share * (1 - share) * apart
    made = Guess(mean, math.sqrt(variance), min(a.low, b.low), max(a.high, b.high))
    made.compares = a.compares and b.compares
    return made


def converted(x: Guess, dtype: torch.dtype, exact: bool = False) -> Guess:
    """`x` in another type: numbers are true where they are not 0."""
    if dtype is torch.bool and not (x.low >= 0 and x.high <= 1):
        found = chance(0.0 if x.mean == x.spread == 0 else 1.0)
    else:
        found = Guess(x.mean, x.spread, x.low, x.high)
    found.exact = exact
    found.compares = x.compares
    return found


def within(x: Guess, low: float, high: float) -> Guess:
    """`x` cut off at bounds."""
    return Guess(min(max(x.mean, low), high), x.spread, max(x.low, low), min(x.high, high))
