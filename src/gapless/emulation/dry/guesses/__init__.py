"""Rules that guess the values of operators' results; importing this registers them.

Bounds are exact where a function has them; means and spreads are those of independent Gaussian elements.
"""

from __future__ import annotations

import math

import torch

from gapless.emulation.dry.guesses import arithmetic, networks
from gapless.emulation.dry.guesses import comparisons as asked
from gapless.emulation.dry.guesses import creation as drawn
from gapless.emulation.dry.guesses import movement as moved
from gapless.emulation.dry.guesses import reductions as reduced
from gapless.emulation.dry.guesses.guess import Guess, anything
from gapless.emulation.dry.guesses.rules import RULES, OperatorResult

__all__ = ["RULES", "arithmetic", "asked", "drawn", "guess_result", "moved", "networks", "reduced"]


def guess_result(result: OperatorResult) -> Guess:
    """Return the guess for a result: from its rule, else an unknown value of its type."""
    function = RULES.get(result.base)
    guess = None
    if function is not None:
        try:
            guess = function(result)
        except (ArithmeticError, ValueError, IndexError, AttributeError, TypeError, RuntimeError):
            guess = None  # arguments of another form than the rule knows
    if guess is None or not _is_plausible(guess, result.dtype):
        return anything(result.base, result.dtype)
    return guess


def _is_plausible(guess: Guess, dtype: torch.dtype) -> bool:
    """Whether a guess is possible for values of `dtype`; only exact ones may be infinite. Bounds bools."""
    if math.isnan(guess.mean) or math.isnan(guess.spread) or math.isnan(guess.low) or math.isnan(guess.high):
        return False
    if not guess.exact and not (math.isfinite(guess.mean) and math.isfinite(guess.spread)):
        return False
    if dtype is torch.bool:
        guess.low, guess.high = 0.0, 1.0
        return 0 <= guess.mean <= 1
    return True
