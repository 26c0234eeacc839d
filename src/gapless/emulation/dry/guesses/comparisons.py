"""Comparisons of numbers, and logic of bools."""

from __future__ import annotations

import math

import torch

from gapless.emulation.dry.guesses.guess import (
    Guess,
    below,
    chance,
)
from gapless.emulation.dry.guesses.rules import OperatorResult, rule


@rule("isfinite")
def _is_finite(result: OperatorResult) -> Guess | None:
    return _assertable_chance(1.0)


@rule("isnan", "isinf", "isneginf", "isposinf")
def _is_not_finite(result: OperatorResult) -> Guess | None:
    return _assertable_chance(0.0)


def _assertable_chance(p: float) -> Guess:
    guess = chance(p)
    guess.compares = True
    return guess


@rule("lt", "le", "gt", "ge", "less", "greater", "isclose")
def _compare(result: OperatorResult) -> Guess | None:
    x, y = result.x, result.y
    if y is None:
        return None
    if result.same(result.args[0], result.args[1]) or (x.exact and y.exact and x.mean == y.mean):
        return _assertable_chance(1.0 if result.base in ("le", "ge", "isclose") else 0.0)
    strict = result.base not in ("le", "ge")
    if result.base == "isclose":
        return _assertable_chance(1.0)
    if result.base[0] == "l":
        p = below(x, y) if strict else 1 - below(y, x) if y.high <= x.low or y.low > x.high else below(x, y)
    else:
        p = below(y, x) if strict else 1 - below(x, y) if x.high <= y.low or x.low > y.high else below(y, x)
    if not strict and (x.high <= y.low if result.base == "le" else x.low >= y.high):
        p = 1.0
    return _assertable_chance(p)


@rule("eq", "ne")
def _equal(result: OperatorResult) -> Guess | None:
    x, y = result.x, result.y
    if y is None:
        return None
    p = _chance_of_equal(result, x, y)
    guess = chance(p if result.base == "eq" else 1 - p)
    if p == 1 and result.same(result.args[0], result.args[1]):
        guess.maker, guess.source = ("isfinite" if result.base == "eq" else "isnan"), x.maker
    tensor = result.args[0]
    guess.compares = isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    return guess


def _chance_of_equal(result: OperatorResult, x: Guess, y: Guess) -> float:
    if result.same(result.args[0], result.args[1]):
        return 1.0  # `isfinite` asks whether a value equals itself
    if x.spread == 0 and y.spread == 0:
        return 1.0 if x.mean == y.mean else 0.0
    if y.low > x.high or y.high < x.low:
        return 0.0
    tensor = result.args[0]
    if tensor.is_floating_point() or tensor.is_complex():
        return 0.0
    if tensor.dtype is torch.bool:
        return x.mean * y.mean + (1 - x.mean) * (1 - y.mean)
    width = max(x.high - x.low, y.high - y.low) + 1
    return 1 / width if math.isfinite(width) else 0.1


@rule("all", "_is_all_true")
def _all(result: OperatorResult) -> Guess | None:
    x = result.x
    if x.compares and x.mean > 0:
        return _assertable_chance(1.0)  # an assertion about numbers holds
    if x.low > 0 or x.mean >= 1:
        return chance(1.0)
    return chance(x.mean**result.ratio if 0 <= x.mean <= 1 else 1.0)


@rule("any", "_is_any_true")
def _any(result: OperatorResult) -> Guess | None:
    x = result.x
    if x.mean == 0 and x.spread == 0:
        guess = chance(0.0)
    elif x.low >= 0 and x.high <= 1:
        guess = chance(1 - (1 - min(1.0, x.mean)) ** result.ratio)
    else:
        guess = chance(1.0)
    guess.compares = x.compares
    return guess


@rule("logical_not", "bitwise_not")
def _not(result: OperatorResult) -> Guess | None:
    x = result.x
    if result.dtype is not torch.bool:
        return Guess(-x.mean - 1, x.spread, -x.high - 1, -x.low - 1)
    guess = chance(1 - x.mean)
    guess.compares = x.compares
    return guess


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
def _combine_bools(result: OperatorResult) -> Guess | None:
    x, y = result.x, result.y
    bits = y is not None and x.low >= 0 and x.high <= 1 and y.low >= 0 and y.high <= 1
    if y is None or not bits:
        return None
    if "and" in result.base:
        p = x.mean * y.mean
    elif "xor" in result.base:
        p = x.mean + y.mean - 2 * x.mean * y.mean
    else:
        p = 1 - (1 - x.mean) * (1 - y.mean)
    guess = chance(p)
    guess.compares = x.compares or y.compares
    return guess
