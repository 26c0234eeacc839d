"""Sums, means, extremes and positions of many elements."""

from __future__ import annotations

import math

import torch

from gapless.emulation.dry.guesses.guess import (
    Guess,
    between,
    clip,
    convert,
)
from gapless.emulation.dry.guesses.rules import OperatorResult, indices, rule

_MAX_SPREADS = 4.5
"""Maximum distance of the largest of many elements from the mean, in spreads."""


@rule("sum", "nansum", "cumsum")
def _sum(result: OperatorResult) -> Guess | None:
    x, r = result.x, result.ratio
    if result.base == "cumsum":
        r = max(1.0, result.length(1) / 2)
    guess = Guess(x.mean * r, x.spread * math.sqrt(r), _scale_bound(x.low, r), _scale_bound(x.high, r))
    guess.exact = x.exact and result.base != "cumsum"
    guess.total = x.total if result.base == "sum" and result.whole else None
    return guess


def _scale_bound(bound: float, r: float) -> float:
    return bound * r if bound else 0.0


@rule("count_nonzero")
def _count_nonzero(result: OperatorResult) -> Guess | None:
    x, r = result.x, result.ratio
    p = x.mean if x.low >= 0 and x.high <= 1 else 1.0
    return Guess(p * r, math.sqrt(r * p * (1 - p)), 0.0, r)


@rule("mean", "nanmean")
def _mean(result: OperatorResult) -> Guess | None:
    x = result.x
    guess = Guess(x.mean, x.spread / math.sqrt(result.ratio), x.low, x.high)
    guess.exact = x.exact
    return guess


@rule("norm", "linalg_vector_norm", "frobenius_norm", "linalg_norm", "_fused_norm")
def _norm(result: OperatorResult) -> Guess | None:
    x = result.x
    size = math.sqrt(result.ratio * (x.mean**2 + x.spread**2))
    return Guess(size, 0.05 * size, 0.0)


@rule("std", "std_mean", "var", "var_mean")
def _standard_deviation(result: OperatorResult) -> Guess | None:
    x = result.x
    if result.position:
        return _mean(result)
    value = x.spread if result.base.startswith("std") else x.spread**2
    return Guess(value, 0.01 * value, 0.0)


@rule("max", "amax", "aminmax")
def _largest(result: OperatorResult) -> Guess | None:
    if result.base == "max" and isinstance(result.args[1] if len(result.args) > 1 else None, torch.Tensor):
        return _maximum(result)
    if result.position and result.base == "max":
        return indices(result)
    return _extreme(
        result, 1.0 if result.position == 0 and result.base != "aminmax" else result.position or -1.0
    )


@rule("min", "amin")
def _smallest(result: OperatorResult) -> Guess | None:
    if result.base == "min" and isinstance(result.args[1] if len(result.args) > 1 else None, torch.Tensor):
        return _minimum(result)
    return indices(result) if result.position else _extreme(result, -1.0)


def _extreme(result: OperatorResult, side: float) -> Guess:
    x = result.x
    if result.ratio <= 1 or x.exact:
        return convert(x, result.dtype, exact=x.exact)
    far = min(_MAX_SPREADS, math.sqrt(2 * math.log(result.ratio)))
    return Guess(min(max(x.mean + side * far * x.spread, x.low), x.high), 0.1 * x.spread, x.low, x.high)


@rule("maximum", "clamp_min", "fmax")
def _maximum(result: OperatorResult) -> Guess | None:
    x, y = result.x, result.y
    if y is None:
        return None
    return Guess(max(x.mean, y.mean), max(x.spread, y.spread), max(x.low, y.low), max(x.high, y.high))


@rule("minimum", "clamp_max", "fmin")
def _minimum(result: OperatorResult) -> Guess | None:
    x, y = result.x, result.y
    if y is None:
        return None
    return Guess(min(x.mean, y.mean), max(x.spread, y.spread), min(x.low, y.low), min(x.high, y.high))


@rule("clamp", "hardtanh")
def _clamp(result: OperatorResult) -> Guess | None:
    low, high = result.y, result.at(2)
    return clip(
        result.x, low.low if low is not None else -math.inf, high.high if high is not None else math.inf
    )


@rule("argmax", "argmin", "argsort")
def _extreme_position(result: OperatorResult) -> Guess | None:
    along = result.length(1) if result.base == "argsort" else int(result.ratio)
    return between(0, max(0, along - 1))


@rule("topk")
def _topk(result: OperatorResult) -> Guess | None:
    x = result.x
    return indices(result) if result.position else Guess(x.mean + x.spread, 0.5 * x.spread, x.low, x.high)


@rule("nonzero")
def _nonzero(result: OperatorResult) -> Guess | None:
    return between(0, max(0, max(result.args[0].shape, default=1) - 1))


@rule("bincount", "histc")
def _bin_counts(result: OperatorResult) -> Guess | None:
    """Return a guess for bin counts, whose total is the number of elements unless weighted."""
    among = result.args[0].numel()
    guess = Guess(result.ratio, 1.0, 0.0, among)
    weighted = result.base == "bincount" and result.at(1) is not None
    guess.total = None if weighted else among
    return guess
