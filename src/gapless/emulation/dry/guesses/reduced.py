"""Sums, means, extremes and positions of many elements."""

from __future__ import annotations

import math

import torch

from gapless.emulation.dry.guesses.guess import (
    Guess,
    between,
    converted,
    within,
)
from gapless.emulation.dry.guesses.made import Made, indices, rule

_MOST_SPREADS = 4.5
"""How far from the mean the largest of many elements is taken to be, in spreads."""


@rule("sum", "nansum", "cumsum")
def _sum(made: Made) -> Guess | None:
    x, r = made.x, made.ratio
    if made.base == "cumsum":
        r = max(1.0, made.length(1) / 2)
    found = Guess(x.mean * r, x.spread * math.sqrt(r), _times(x.low, r), _times(x.high, r))
    found.exact = x.exact and made.base != "cumsum"
    found.total = x.total if made.base == "sum" and made.whole else None
    return found


def _times(bound: float, r: float) -> float:
    return bound * r if bound else 0.0


@rule("count_nonzero")
def _count(made: Made) -> Guess | None:
    x, r = made.x, made.ratio
    p = x.mean if x.low >= 0 and x.high <= 1 else 1.0
    return Guess(p * r, math.sqrt(r * p * (1 - p)), 0.0, r)


@rule("mean", "nanmean")
def _mean(made: Made) -> Guess | None:
    x = made.x
    found = Guess(x.mean, x.spread / math.sqrt(made.ratio), x.low, x.high)
    found.exact = x.exact
    return found


@rule("norm", "linalg_vector_norm", "frobenius_norm", "linalg_norm", "_fused_norm")
def _norm(made: Made) -> Guess | None:
    x = made.x
    size = math.sqrt(made.ratio * (x.mean**2 + x.spread**2))
    return Guess(size, 0.05 * size, 0.0)


@rule("std", "std_mean", "var", "var_mean")
def _deviation(made: Made) -> Guess | None:
    x = made.x
    if made.position:
        return _mean(made)
    value = x.spread if made.base.startswith("std") else x.spread**2
    return Guess(value, 0.01 * value, 0.0)


@rule("max", "amax", "aminmax")
def _largest(made: Made) -> Guess | None:
    if made.base == "max" and isinstance(made.args[1] if len(made.args) > 1 else None, torch.Tensor):
        return _maximum(made)
    if made.position and made.base == "max":
        return indices(made)
    return _extreme(made, 1.0 if made.position == 0 and made.base != "aminmax" else made.position or -1.0)


@rule("min", "amin")
def _smallest(made: Made) -> Guess | None:
    if made.base == "min" and isinstance(made.args[1] if len(made.args) > 1 else None, torch.Tensor):
        return _minimum(made)
    return indices(made) if made.position else _extreme(made, -1.0)


def _extreme(made: Made, side: float) -> Guess:
    x = made.x
    if made.ratio <= 1 or x.exact:
        return converted(x, made.dtype, exact=x.exact)
    far = min(_MOST_SPREADS, math.sqrt(2 * math.log(made.ratio)))
    return Guess(min(max(x.mean + side * far * x.spread, x.low), x.high), 0.1 * x.spread, x.low, x.high)


@rule("maximum", "clamp_min", "fmax")
def _maximum(made: Made) -> Guess | None:
    x, y = made.x, made.y
    if y is None:
        return None
    return Guess(max(x.mean, y.mean), max(x.spread, y.spread), max(x.low, y.low), max(x.high, y.high))


@rule("minimum", "clamp_max", "fmin")
def _minimum(made: Made) -> Guess | None:
    x, y = made.x, made.y
    if y is None:
        return None
    return Guess(min(x.mean, y.mean), max(x.spread, y.spread), min(x.low, y.low), min(x.high, y.high))


@rule("clamp", "hardtanh")
def _clamp(made: Made) -> Guess | None:
    low, high = made.y, made.at(2)
    return within(
        made.x, low.low if low is not None else -math.inf, high.high if high is not None else math.inf
    )


@rule("argmax", "argmin", "argsort")
def _position(made: Made) -> Guess | None:
    along = made.length(1) if made.base == "argsort" else int(made.ratio)
    return between(0, max(0, along - 1))


@rule("topk")
def _topk(made: Made) -> Guess | None:
    x = made.x
    return indices(made) if made.position else Guess(x.mean + x.spread, 0.5 * x.spread, x.low, x.high)


@rule("nonzero")
def _nonzero(made: Made) -> Guess | None:
    return between(0, max(0, max(made.args[0].shape, default=1) - 1))


@rule("bincount", "histc")
def _counts(made: Made) -> Guess | None:
    """Each element is in one of the bins, unless they have weights."""
    among = made.args[0].numel()
    found = Guess(made.ratio, 1.0, 0.0, among)
    weighted = made.base == "bincount" and made.at(1) is not None
    found.total = None if weighted else among
    return found
