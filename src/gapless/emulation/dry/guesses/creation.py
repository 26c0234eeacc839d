"""Constants and random numbers."""

from __future__ import annotations

import math

import torch

from gapless.emulation.dry.guesses.guess import (
    Guess,
    between,
    chance,
    clip,
    constant,
    convert,
)
from gapless.emulation.dry.guesses.rules import OperatorResult, rule


@rule("zeros", "zeros_like", "new_zeros", "zero", "_efficientzerotensor")
def _zeros(result: OperatorResult) -> Guess | None:
    return constant(0.0)


@rule("ones", "ones_like", "new_ones")
def _ones(result: OperatorResult) -> Guess | None:
    return constant(1.0)


@rule("full", "full_like", "new_full", "fill")
def _full(result: OperatorResult) -> Guess | None:
    at = 2 if result.base == "new_full" else 1
    value = result.at(at)
    return None if value is None else convert(value, result.dtype, exact=value.exact)


@rule("arange")
def _arange(result: OperatorResult) -> Guess | None:
    numbers = [number for number in result.args if isinstance(number, (int, float))]
    low, high = (0.0, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1]) if numbers else (0, 1)
    return between(low, max(low, high - 1))


@rule("rand", "rand_like", "uniform")
def _uniform(result: OperatorResult) -> Guess | None:
    low, high = (result.number(1, 0.0), result.number(2, 1.0)) if result.base == "uniform" else (0.0, 1.0)
    return Guess((low + high) / 2, (high - low) / math.sqrt(12), low, high)


@rule("normal")
def _normal(result: OperatorResult) -> Guess | None:
    return Guess(result.number(1, 0.0), result.number(2, 1.0))


@rule("bernoulli", "bernoulli.p")
def _bernoulli(result: OperatorResult) -> Guess | None:
    p = result.y if result.y is not None else result.x
    return chance(p.mean) if result.dtype is torch.bool else clip(chance(p.mean), 0, 1)


@rule("exponential")
def _exponential(result: OperatorResult) -> Guess | None:
    rate = result.number(1, 1.0) or 1.0
    return Guess(1 / rate, 1 / rate, 0.0)


@rule("randint", "random", "randint_like")
def _random(result: OperatorResult) -> Guess | None:
    numbers = [number for number in result.args if isinstance(number, int) and not isinstance(number, bool)]
    if not numbers:
        return None
    low, high = (numbers[0], numbers[1]) if len(numbers) > 1 else (0, numbers[0])
    return between(low, max(low, high - 1))


@rule("randperm")
def _randperm(result: OperatorResult) -> Guess | None:
    return between(0, max(0, result.number(0, 1) - 1))


@rule("multinomial")
def _multinomial(result: OperatorResult) -> Guess | None:
    tensor = result.args[0]
    return between(0, max(0, int(tensor.shape[-1]) - 1)) if tensor.dim() else None
