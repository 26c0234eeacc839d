"""Constants and random numbers."""

from __future__ import annotations

import math

import torch

from gapless.emulation.dry.guesses.guess import (
    Guess,
    between,
    chance,
    constant,
    converted,
    within,
)
from gapless.emulation.dry.guesses.made import Made, rule


@rule("zeros", "zeros_like", "new_zeros", "zero", "_efficientzerotensor")
def _zeros(made: Made) -> Guess | None:
    return constant(0.0)


@rule("ones", "ones_like", "new_ones")
def _ones(made: Made) -> Guess | None:
    return constant(1.0)


@rule("full", "full_like", "new_full", "fill")
def _full(made: Made) -> Guess | None:
    at = 2 if made.base == "new_full" else 1
    value = made.at(at)
    return None if value is None else converted(value, made.dtype, exact=value.exact)


@rule("arange")
def _arange(made: Made) -> Guess | None:
    numbers = [one for one in made.args if isinstance(one, (int, float))]
    low, high = (0.0, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1]) if numbers else (0, 1)
    return between(low, max(low, high - 1))


@rule("rand", "rand_like", "uniform")
def _uniform(made: Made) -> Guess | None:
    low, high = (made.number(1, 0.0), made.number(2, 1.0)) if made.base == "uniform" else (0.0, 1.0)
    return Guess((low + high) / 2, (high - low) / math.sqrt(12), low, high)


@rule("normal")
def _normal(made: Made) -> Guess | None:
    return Guess(made.number(1, 0.0), made.number(2, 1.0))


@rule("bernoulli", "bernoulli.p")
def _bernoulli(made: Made) -> Guess | None:
    p = made.y if made.y is not None else made.x
    return chance(p.mean) if made.dtype is torch.bool else within(chance(p.mean), 0, 1)


@rule("exponential")
def _exponential(made: Made) -> Guess | None:
    rate = made.number(1, 1.0) or 1.0
    return Guess(1 / rate, 1 / rate, 0.0)


@rule("randint", "random", "randint_like")
def _random(made: Made) -> Guess | None:
    numbers = [one for one in made.args if isinstance(one, int) and not isinstance(one, bool)]
    if not numbers:
        return None
    low, high = (numbers[0], numbers[1]) if len(numbers) > 1 else (0, numbers[0])
    return between(low, max(low, high - 1))


@rule("randperm")
def _randperm(made: Made) -> Guess | None:
    return between(0, max(0, made.number(0, 1) - 1))


@rule("multinomial")
def _multinomial(made: Made) -> Guess | None:
    tensor = made.args[0]
    return between(0, max(0, int(tensor.shape[-1]) - 1)) if tensor.dim() else None
