"""Questions about numbers, and what bools become."""

from __future__ import annotations

import math

import torch

from gapless.emulation.dry.guesses.guess import (
    Guess,
    below,
    chance,
)
from gapless.emulation.dry.guesses.made import Made, rule


@rule("isfinite")
def _finite(made: Made) -> Guess | None:
    return _asserted(1.0)


@rule("isnan", "isinf", "isneginf", "isposinf")
def _not_a_number(made: Made) -> Guess | None:
    return _asserted(0.0)


def _asserted(p: float) -> Guess:
    found = chance(p)
    found.compares = True
    return found


@rule("lt", "le", "gt", "ge", "less", "greater", "isclose")
def _compared(made: Made) -> Guess | None:
    x, y = made.x, made.y
    if y is None:
        return None
    if made.same(made.args[0], made.args[1]) or (x.exact and y.exact and x.mean == y.mean):
        return _asserted(1.0 if made.base in ("le", "ge", "isclose") else 0.0)
    strict = made.base not in ("le", "ge")
    if made.base == "isclose":
        return _asserted(1.0)
    if made.base[0] == "l":
        p = below(x, y) if strict else 1 - below(y, x) if y.high <= x.low or y.low > x.high else below(x, y)
    else:
        p = below(y, x) if strict else 1 - below(x, y) if x.high <= y.low or x.low > y.high else below(y, x)
    if not strict and (x.high <= y.low if made.base == "le" else x.low >= y.high):
        p = 1.0
    return _asserted(p)


@rule("eq", "ne")
def _equal(made: Made) -> Guess | None:
    x, y = made.x, made.y
    if y is None:
        return None
    p = _chance_of_equal(made, x, y)
    found = chance(p if made.base == "eq" else 1 - p)
    if p == 1 and made.same(made.args[0], made.args[1]):
        found.maker, found.source = ("isfinite" if made.base == "eq" else "isnan"), x.maker
    tensor = made.args[0]
    found.compares = isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    return found


def _chance_of_equal(made: Made, x: Guess, y: Guess) -> float:
    if made.same(made.args[0], made.args[1]):
        return 1.0  # `isfinite` asks whether a value equals itself
    if x.spread == 0 and y.spread == 0:
        return 1.0 if x.mean == y.mean else 0.0
    if y.low > x.high or y.high < x.low:
        return 0.0
    tensor = made.args[0]
    if tensor.is_floating_point() or tensor.is_complex():
        return 0.0
    if tensor.dtype is torch.bool:
        return x.mean * y.mean + (1 - x.mean) * (1 - y.mean)
    width = max(x.high - x.low, y.high - y.low) + 1
    return 1 / width if math.isfinite(width) else 0.1


@rule("all", "_is_all_true")
def _all(made: Made) -> Guess | None:
    x = made.x
    if x.compares and x.mean > 0:
        return _asserted(1.0)  # an assertion about numbers holds
    if x.low > 0 or x.mean >= 1:
        return chance(1.0)
    return chance(x.mean**made.ratio if 0 <= x.mean <= 1 else 1.0)


@rule("any", "_is_any_true")
def _any(made: Made) -> Guess | None:
    x = made.x
    if x.mean == 0 and x.spread == 0:
        found = chance(0.0)
    elif x.low >= 0 and x.high <= 1:
        found = chance(1 - (1 - min(1.0, x.mean)) ** made.ratio)
    else:
        found = chance(1.0)
    found.compares = x.compares
    return found


@rule("logical_not", "bitwise_not")
def _not(made: Made) -> Guess | None:
    x = made.x
    if made.dtype is not torch.bool:
        return Guess(-x.mean - 1, x.spread, -x.high - 1, -x.low - 1)
    found = chance(1 - x.mean)
    found.compares = x.compares
    return found


@rule(
    "logical_and",
    "bitwise_and",
    "logical_or",
    "bitwise_or",
    "logical_xor",
    "bitwise_xor",
    "__and__",
    "__or__",
)
def _joined_bools(made: Made) -> Guess | None:
    x, y = made.x, made.y
    bits = y is not None and x.low >= 0 and x.high <= 1 and y.low >= 0 and y.high <= 1
    if y is None or not bits:
        return None
    if "and" in made.base:
        p = x.mean * y.mean
    elif "xor" in made.base:
        p = x.mean + y.mean - 2 * x.mean * y.mean
    else:
        p = 1 - (1 - x.mean) * (1 - y.mean)
    found = chance(p)
    found.compares = x.compares or y.compares
    return found
