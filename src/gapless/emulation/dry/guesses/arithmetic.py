"""Arithmetic, element by element."""

from __future__ import annotations

import math

import torch

from gapless.emulation.dry.guesses.guess import (
    Guess,
    between,
    chance,
    constant,
    mix,
)
from gapless.emulation.dry.guesses.rules import OperatorResult, rule


@rule("add", "sub", "rsub")
def _add_or_subtract(result: OperatorResult) -> Guess | None:
    x, y = result.x, result.y
    if y is None:
        return None
    if result.base == "rsub":
        x, y = y, x
    if result.base == "add":
        guess = Guess(x.mean + y.mean, math.hypot(x.spread, y.spread), x.low + y.low, x.high + y.high)
    else:
        guess = Guess(x.mean - y.mean, math.hypot(x.spread, y.spread), x.low - y.high, x.high - y.low)
    guess.exact = x.exact and y.exact and len(result.args) == 2
    return guess


@rule("mul")
def _multiply(result: OperatorResult) -> Guess | None:
    x, y = result.x, result.y
    if y is None:
        return None
    if result.same(result.args[0], result.args[1]):
        return _square(result)
    guess = _product(x, y)
    guess.exact = x.exact and y.exact
    guess.compares = (x.compares or y.compares) and result.dtype is torch.bool
    if guess.compares:  # `isfinite` ends in such a product
        guess.maker, guess.source = x.maker, x.source
    return guess


@rule("native_dropout")
def _dropout(result: OperatorResult) -> Guess | None:
    kept = 1 - min(max(result.number(1, 0.5), 0.0), 1.0)
    return (
        chance(kept)
        if result.position
        else _product(result.x, _dropout_factor(kept, 1 / kept if kept else 0.0))
    )


@rule("native_dropout_backward")
def _dropout_backward(result: OperatorResult) -> Guess | None:
    return (
        None
        if result.y is None
        else _product(result.x, _dropout_factor(result.y.mean, result.number(2, 1.0)))
    )


def _dropout_factor(kept: float, scale: float) -> Guess:
    """Return a guess for the factors of dropout: `scale` with probability `kept`, else 0."""
    return Guess(kept * scale, scale * math.sqrt(kept * (1 - kept)), 0.0, scale)


def _product(x: Guess, y: Guess) -> Guess:
    """Return a guess for the product of independent numbers."""
    spread = math.sqrt((x.spread * y.mean) ** 2 + (y.spread * x.mean) ** 2 + (x.spread * y.spread) ** 2)
    return Guess(x.mean * y.mean, spread, *_product_bounds(x, y))


def _product_bounds(x: Guess, y: Guess) -> tuple[float, float]:
    ends = [_bound_product(a, b) for a in (x.low, x.high) for b in (y.low, y.high)]
    return min(ends), max(ends)


def _bound_product(a: float, b: float) -> float:
    return a * b if a and b else 0.0


@rule("div", "true_divide", "floor_divide", "reciprocal")
def _divide(result: OperatorResult) -> Guess | None:
    x, y = (constant(1.0), result.x) if result.base == "reciprocal" else (result.x, result.y)
    if y is None:
        return None
    by = y.mean if abs(y.mean) > 1e-12 else y.spread or 1.0
    value = x.mean / by
    spread = math.hypot(x.spread / by, value * y.spread / by if abs(by) > 2 * y.spread else 0.0)
    low = high = math.inf
    if y.low == y.high and y.low:
        low, high = sorted((x.low / y.low, x.high / y.low))
    elif x.low >= 0 and y.low >= 0:
        low = 0.0
    else:
        low = -math.inf
    guess = Guess(value, abs(spread), low, high)
    guess.exact = x.exact and y.exact and y.mean != 0 and result.base != "floor_divide"
    return guess


@rule("remainder", "fmod", "__mod__")
def _remainder(result: OperatorResult) -> Guess | None:
    y = result.y
    return between(0, y.mean - 1) if y is not None and y.exact and y.mean >= 1 else None


@rule("pow", "square")
def _power(result: OperatorResult) -> Guess | None:
    y = constant(2.0) if result.base == "square" else result.y
    if y is None or y.spread:
        return None
    if y.mean == 2:
        return _square(result)
    x = result.x
    if x.low < 0 and x.mean <= 0:
        return Guess(0.0, 1.0) if y.mean % 2 else Guess(1.0, 1.0, 0.0)
    try:
        return Guess(
            max(x.mean, 1e-6) ** y.mean, x.spread, 0.0 if x.low >= 0 or y.mean % 2 == 0 else -math.inf
        )
    except OverflowError:
        return None


def _square(result: OperatorResult) -> Guess:
    x = result.x
    mean = x.mean**2 + x.spread**2
    return Guess(mean, math.sqrt(2) * x.spread**2 + 2 * abs(x.mean) * x.spread, 0.0)


@rule("neg")
def _negate(result: OperatorResult) -> Guess | None:
    x = result.x
    guess = Guess(-x.mean, x.spread, -x.high, -x.low)
    guess.exact = x.exact
    return guess


@rule("abs")
def _absolute_value(result: OperatorResult) -> Guess | None:
    x = result.x
    return Guess(max(abs(x.mean), 0.8 * x.spread), 0.6 * x.spread, 0.0, max(abs(x.low), abs(x.high)))


@rule("sqrt", "rsqrt")
def _square_root(result: OperatorResult) -> Guess | None:
    x = result.x
    root = math.sqrt(max(x.mean, 0.0) + 0.01 * x.spread) or 1e-6
    return Guess(root, 0.1 * root, 0.0) if result.base == "sqrt" else Guess(1 / root, 0.1 / root, 0.0)


_MAX_LOG_VARIANCE = 4.0
"""Maximum variance of an exponent: scripts exponentiate ratios and variances that training keeps near 1, and
independent elements of a wider spread would give losses of millions."""


@rule("exp", "exp2", "expm1")
def _exponent(result: OperatorResult) -> Guess | None:
    x = result.x
    mean = math.exp(min(80.0, x.mean + min(x.spread**2, _MAX_LOG_VARIANCE) / 2))
    high = math.exp(x.high) if x.high < 80 else math.inf
    return Guess(min(mean, high), min(mean, high), math.exp(x.low) if x.low > -700 else 0.0, high)


@rule("log", "log2", "log10", "log1p")
def _logarithm(result: OperatorResult) -> Guess | None:
    x = result.x
    mean = math.log(max(x.mean, 1e-6)) if result.base != "log1p" else math.log1p(max(x.mean, -0.999999))
    shift = 1.0 if result.base == "log1p" else 0.0
    low = math.log(x.low + shift) if x.low + shift > 0 else -math.inf
    high = math.log(x.high + shift) if 0 < x.high + shift < math.inf else math.inf
    return Guess(mean, min(1.0, x.spread / max(abs(x.mean), 1e-6)), low, high)


@rule("lerp")
def _lerp(result: OperatorResult) -> Guess | None:
    return None if result.y is None else mix(result.x, result.y, 0.5)


@rule("addcmul", "addcdiv")
def _add_product(result: OperatorResult) -> Guess | None:
    x = result.x
    positive = x.low >= 0 and result.base == "addcmul" and result.same(result.args[1], result.args[2])
    return Guess(x.mean, max(x.spread, 1e-3), 0.0 if positive else -math.inf)


@rule("sin", "cos", "tanh", "erf", "sign", "sgn")
def _bounded_function(result: OperatorResult) -> Guess | None:
    x = result.x
    return Guess(
        max(-1.0, min(1.0, x.mean)) if result.base in ("tanh", "erf", "sign", "sgn") else 0.0, 0.7, -1.0, 1.0
    )
