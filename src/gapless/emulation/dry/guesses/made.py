"""What the results of operators are like, where there are no values: by a rule for each operator.

A rule takes a `Made` (what the operator was given, and how many elements it made of how many) and gives a
`Guess`, or None where it has nothing better than `anything`. An operator and its forms in place, into
``out=`` and over lists have one rule. Bounds are exact where a function has them; means and spreads are those
of independent Gaussian elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gapless.emulation.dry.guesses.guess import Guess, anything, between

Rule = Callable[["Made"], "Guess | None"]
RULES: dict[str, Rule] = {}


class Made:
    """One result of an operator.

    `x`, `y` and `z` are what its first arguments are like (numbers too; None for what is neither), `args` the
    arguments themselves. `ratio` is how many elements of the first one stand for one of the result.
    """

    __slots__ = ("args", "base", "dtype", "guess_of", "position", "ratio", "same")

    def __init__(
        self, base: str, args: tuple[Any, ...], dtype: torch.dtype, position: int, ratio: float,
        guess_of: Callable[[Any], Guess | None], same: Callable[[Any, Any], bool],
    ) -> None:  # fmt: skip
        self.base, self.args, self.dtype, self.position, self.ratio = base, args, dtype, position, ratio
        self.guess_of, self.same = guess_of, same

    def at(self, position: int) -> Guess | None:
        """What the argument at that position is like."""
        return self.guess_of(self.args[position]) if position < len(self.args) else None

    @property
    def x(self) -> Guess:
        found = self.at(0)
        return anything("", torch.float32) if found is None else found

    @property
    def y(self) -> Guess | None:
        return self.at(1)

    @property
    def whole(self) -> bool:
        """Whether the first argument is all of its storage."""
        return isinstance(self.args[0], torch.Tensor) and is_whole(self.args[0])

    def number(self, position: int, default: float = 0.0) -> float:
        """The plain number at that position."""
        found = self.args[position] if position < len(self.args) else None
        return found if isinstance(found, (int, float)) else default

    def length(self, position: int) -> int:
        """Elements along the dimension that the argument at `position` names, of the first argument."""
        tensor = self.args[0]
        dim = self.args[position] if position < len(self.args) else None
        if not isinstance(tensor, torch.Tensor) or not tensor.dim():
            return 1
        dim = dim[0] if isinstance(dim, (list, tuple)) and len(dim) == 1 else dim
        return int(tensor.shape[dim]) if isinstance(dim, int) else int(tensor.numel())


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is all of its storage."""
    return bool(tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes())


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operators of ATen, by their names without an underscore behind."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def base_of(name: str) -> str:
    """``aten::_foreach_add_`` and ``aten::add_`` are ``add``."""
    short = name.split("::", 1)[-1]
    if short.startswith("_foreach_"):
        short = short[len("_foreach_") :]
    return short.removesuffix("_") if not short.endswith("__") else short


def indices(made: Made) -> Guess | None:
    """Positions along a dimension, for the second result of those that give two."""
    if made.dtype.is_floating_point:
        return None
    dim = 2 if made.base in ("topk", "kthvalue") else 1
    return between(0, max(0, made.length(dim) - 1))
