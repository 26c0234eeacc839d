"""Rules for what the results of operators are like; importing this registers them.

Bounds are exact where a function has them; means and spreads are those of independent Gaussian elements.
"""

from __future__ import annotations

import math

import torch

from gapless.emulation.dry.guesses import arithmetic, asked, drawn, moved, networks, reduced
from gapless.emulation.dry.guesses.guess import Guess, anything
from gapless.emulation.dry.guesses.made import RULES, Made

__all__ = ["RULES", "arithmetic", "asked", "drawn", "guess", "moved", "networks", "reduced"]


def guess(made: Made) -> Guess:
    """What the result is like: by its rule, else anything of its type."""
    function = RULES.get(made.base)
    found = None
    if function is not None:
        try:
            found = function(made)
        except (ArithmeticError, ValueError, IndexError, AttributeError, TypeError, RuntimeError):
            found = None  # arguments of another form than the rule knows
    if found is None or not _sound(found, made.dtype):
        return anything(made.base, made.dtype)
    return found


def _sound(found: Guess, dtype: torch.dtype) -> bool:
    """Whether the guess can stand for values of this type; an infinite one only where it is no guess."""
    if math.isnan(found.mean) or math.isnan(found.spread) or math.isnan(found.low) or math.isnan(found.high):
        return False
    if not found.exact and not (math.isfinite(found.mean) and math.isfinite(found.spread)):
        return False
    if dtype is torch.bool:
        found.low, found.high = 0.0, 1.0
        return 0 <= found.mean <= 1
    return True
