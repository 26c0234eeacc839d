"""Arithmetic, element by element."""

from __future__ import annotations

import math

import torch

from gapless.emulation.dry.guesses.guess import (
    Guess,
    between,
    chance,
    constant,
    mixed,
)
from gapless.emulation.dry.guesses.made import Made, rule


@rule("add", "sub", "rsub")
def _added(made: Made) -> Guess | None:
    x, y = made.x, made.y
    if y is None:
        return None
    if made.base == "rsub":
        x, y = y, x
    if made.base == "add":
        found = Guess(x.mean + y.mean, math.hypot(x.spread, y.spread), x.low + y.low, x.high + y.high)
    else:
        found = Guess(x.mean - y.mean, math.hypot(x.spread, y.spread), x.low - y.high, x.high - y.low)
    found.exact = x.exact and y.exact and len(made.args) == 2
    return found


@rule("mul")
def _multiplied(made: Made) -> Guess | None:
    x, y = made.x, made.y
    if y is None:
        return None
    if made.same(made.args[0], made.args[1]):
        return _squared(made)
    found = _product_of(x, y)
    found.exact = x.exact and y.exact
    found.compares = (x.compares or y.compares) and made.dtype is torch.bool
    if found.compares:  # `isfinite` ends in such a product
        found.maker, found.source = x.maker, x.source
    return found


@rule("native_dropout")
def _dropped(made: Made) -> Guess | None:
    kept = 1 - min(max(made.number(1, 0.5), 0.0), 1.0)
    return chance(kept) if made.position else _product_of(made.x, _scaled(kept, 1 / kept if kept else 0.0))


@rule("native_dropout_backward")
def _dropped_backward(made: Made) -> Guess | None:
    return None if made.y is None else _product_of(made.x, _scaled(made.y.mean, made.number(2, 1.0)))


def _scaled(kept: float, scale: float) -> Guess:
    """What dropout multiplies with."""
    return Guess(kept * scale, scale * math.sqrt(kept * (1 - kept)), 0.0, scale)


def _product_of(x: Guess, y: Guess) -> Guess:
    """Numbers that do not depend on each other, multiplied."""
    spread = math.sqrt((x.spread * y.mean) ** 2 + (y.spread * x.mean) ** 2 + (x.spread * y.spread) ** 2)
    return Guess(x.mean * y.mean, spread, *_products(x, y))


def _products(x: Guess, y: Guess) -> tuple[float, float]:
    ends = [_product(a, b) for a in (x.low, x.high) for b in (y.low, y.high)]
    return min(ends), max(ends)


def _product(a: float, b: float) -> float:
    return a * b if a and b else 0.0


@rule("div", "true_divide", "floor_divide", "reciprocal")
def _divided(made: Made) -> Guess | None:
    x, y = (constant(1.0), made.x) if made.base == "reciprocal" else (made.x, made.y)
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
    found = Guess(value, abs(spread), low, high)
    found.exact = x.exact and y.exact and y.mean != 0 and made.base != "floor_divide"
    return found


@rule("remainder", "fmod", "__mod__")
def _remainder(made: Made) -> Guess | None:
    y = made.y
    return between(0, y.mean - 1) if y is not None and y.exact and y.mean >= 1 else None


@rule("pow", "square")
def _power(made: Made) -> Guess | None:
    y = constant(2.0) if made.base == "square" else made.y
    if y is None or y.spread:
        return None
    if y.mean == 2:
        return _squared(made)
    x = made.x
    if x.low < 0 and x.mean <= 0:
        return Guess(0.0, 1.0) if y.mean % 2 else Guess(1.0, 1.0, 0.0)
    try:
        return Guess(
            max(x.mean, 1e-6) ** y.mean, x.spread, 0.0 if x.low >= 0 or y.mean % 2 == 0 else -math.inf
        )
    except OverflowError:
        return None


def _squared(made: Made) -> Guess:
    x = made.x
    mean = x.mean**2 + x.spread**2
    return Guess(mean, math.sqrt(2) * x.spread**2 + 2 * abs(x.mean) * x.spread, 0.0)


@rule("neg")
def _negated(made: Made) -> Guess | None:
    x = made.x
    found = Guess(-x.mean, x.spread, -x.high, -x.low)
    found.exact = x.exact
    return found


@rule("abs")
def _absolute(made: Made) -> Guess | None:
    x = made.x
    return Guess(max(abs(x.mean), 0.8 * x.spread), 0.6 * x.spread, 0.0, max(abs(x.low), abs(x.high)))


@rule("sqrt", "rsqrt")
def _root(made: Made) -> Guess | None:
    x = made.x
    root = math.sqrt(max(x.mean, 0.0) + 0.01 * x.spread) or 1e-6
    return Guess(root, 0.1 * root, 0.0) if made.base == "sqrt" else Guess(1 / root, 0.1 / root, 0.0)


_MOST_VARIANCE = 4.0
"""Of what is exponentiated, at most: scripts do so to ratios and variances that training keeps near 1, and
independent elements of a wider spread would make losses of millions."""


@rule("exp", "exp2", "expm1")
def _exponent(made: Made) -> Guess | None:
    x = made.x
    mean = math.exp(min(80.0, x.mean + min(x.spread**2, _MOST_VARIANCE) / 2))
    high = math.exp(x.high) if x.high < 80 else math.inf
    return Guess(min(mean, high), min(mean, high), math.exp(x.low) if x.low > -700 else 0.0, high)


@rule("log", "log2", "log10", "log1p")
def _logarithm(made: Made) -> Guess | None:
    x = made.x
    mean = math.log(max(x.mean, 1e-6)) if made.base != "log1p" else math.log1p(max(x.mean, -0.999999))
    shift = 1.0 if made.base == "log1p" else 0.0
    low = math.log(x.low + shift) if x.low + shift > 0 else -math.inf
    high = math.log(x.high + shift) if 0 < x.high + shift < math.inf else math.inf
    return Guess(mean, min(1.0, x.spread / max(abs(x.mean), 1e-6)), low, high)


@rule("lerp")
def _lerped(made: Made) -> Guess | None:
    return None if made.y is None else mixed(made.x, made.y, 0.5)


@rule("addcmul", "addcdiv")
def _added_product(made: Made) -> Guess | None:
    x = made.x
    positive = x.low >= 0 and made.base == "addcmul" and made.same(made.args[1], made.args[2])
    return Guess(x.mean, max(x.spread, 1e-3), 0.0 if positive else -math.inf)


@rule("sin", "cos", "tanh", "erf", "sign", "sgn")
def _bounded(made: Made) -> Guess | None:
    x = made.x
    return Guess(
        max(-1.0, min(1.0, x.mean)) if made.base in ("tanh", "erf", "sign", "sgn") else 0.0, 0.7, -1.0, 1.0
    )
