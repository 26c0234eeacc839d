"""`Guess`: the distribution of the values in a storage that has none."""

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

    def copy_as_filled(self) -> Guess:
        """Return a copy for a storage that holds made-up values."""
        guess = Guess(self.mean, self.spread, self.low, self.high)
        guess.compares, guess.maker, guess.source = self.compares, self.maker, self.source
        guess.filled = True
        return guess

    @property
    def made_by(self) -> str:
        """Return the origin for a report, as ``mean of nll_loss``."""
        return f"{self.maker} of {self.source}" if self.source else self.maker

    def __repr__(self) -> str:
        return f"Guess({self.mean:.4g} ± {self.spread:.3g}, {self.low:.4g} to {self.high:.4g})"


def constant(value: float) -> Guess:
    """Return the exact guess that all elements are `value`."""
    guess = Guess(value, 0.0, value, value)
    guess.exact = True
    return guess


def between(low: float, high: float) -> Guess:
    """Return a guess for integers uniform from `low` to `high`."""
    return Guess((low + high) / 2, (high - low + 1) / math.sqrt(12), low, high)


def chance(p: float) -> Guess:
    """Return a guess for bools that are true with probability `p`."""
    p = min(1.0, max(0.0, p))
    return Guess(p, math.sqrt(p * (1 - p)), 0.0, 1.0)


@cache
def anything(maker: str, dtype: torch.dtype) -> Guess:
    """Return a guess from the type alone: bools 50:50, floats around 0, integers around 1."""
    if dtype is torch.bool:
        guess = chance(0.5)
    elif dtype.is_floating_point or dtype.is_complex:
        guess = Guess()
    else:
        guess = Guess(1.0, 1.0, 0.0 if dtype is torch.uint8 else -_INFINITE)
    guess.maker = maker
    return guess


def below(a: Guess, b: Guess) -> float:
    """Return the probability that an element of `a` is less than one of `b`."""
    if a.high < b.low:
        return 1.0
    if a.low >= b.high:
        return 0.0
    spread = math.hypot(a.spread, b.spread)
    if spread == 0 or not math.isfinite(spread):
        return 1.0 if a.mean < b.mean else 0.0
    return 0.5 * (1 + math.erf(max(-30.0, min(30.0, (b.mean - a.mean) / spread)) / math.sqrt(2)))


def mix(a: Guess, b: Guess, share: float) -> Guess:
    """Return a guess for elements of `b` with probability `share`, else of `a`."""
    if a.exact and b.exact and a.mean == b.mean:
        return constant(a.mean)
    mean = (1 - share) * a.mean + share * b.mean if math.isfinite(a.mean + b.mean) else b.mean
    apart = (a.mean - b.mean) ** 2 if math.isfinite(a.mean - b.mean) else 0.0
    variance = (1 - share) * a.spread**2 + share * b.spread**2 + share * (1 - share) * apart
    guess = Guess(mean, math.sqrt(variance), min(a.low, b.low), max(a.high, b.high))
    guess.compares = a.compares and b.compares
    return guess


def convert(x: Guess, dtype: torch.dtype, exact: bool = False) -> Guess:
    """Return `x` converted to `dtype`; nonzero numbers become true."""
    if dtype is torch.bool and not (x.low >= 0 and x.high <= 1):
        guess = chance(0.0 if x.mean == x.spread == 0 else 1.0)
    else:
        guess = Guess(x.mean, x.spread, x.low, x.high)
    guess.exact = exact
    guess.compares = x.compares
    return guess


def clip(x: Guess, low: float, high: float) -> Guess:
    """Return `x` clipped to `low` and `high`."""
    return Guess(min(max(x.mean, low), high), x.spread, max(x.low, low), min(x.high, high))
