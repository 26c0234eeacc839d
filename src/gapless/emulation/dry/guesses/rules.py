"""The registry of rules that guess the values of operators' results.

A rule takes an `OperatorResult` (the arguments, and how many elements give one of the result) and returns a
`Guess`, or None if it has nothing better than `anything`. The in-place, ``out=`` and list forms of an
operator share its rule. Bounds are exact if a function has them; means and spreads are those of independent
Gaussian elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gapless.emulation.dry.guesses.guess import Guess, anything, between

Rule = Callable[["OperatorResult"], "Guess | None"]
RULES: dict[str, Rule] = {}


class OperatorResult:
    """One result of an operator, whose values a rule guesses.

    `x` and `y` are guesses for its first arguments, `args` the arguments themselves. `ratio` is the number of
    elements of the first argument per element of the result.
    """

    __slots__ = ("args", "base", "dtype", "guess_of", "position", "ratio", "same")

    def __init__(
        self, base: str, args: tuple[Any, ...], dtype: torch.dtype, position: int, ratio: float,
        guess_of: Callable[[Any], Guess | None], same: Callable[[Any, Any], bool],
    ) -> None:  # fmt: skip
        self.base, self.args, self.dtype, self.position, self.ratio = base, args, dtype, position, ratio
        self.guess_of, self.same = guess_of, same

    def at(self, position: int) -> Guess | None:
        """Return the guess for the argument at `position`; None if it is no tensor or number."""
        return self.guess_of(self.args[position]) if position < len(self.args) else None

    @property
    def x(self) -> Guess:
        argument = self.at(0)
        return anything("", torch.float32) if argument is None else argument

    @property
    def y(self) -> Guess | None:
        return self.at(1)

    @property
    def whole(self) -> bool:
        """Whether the first argument is all of its storage."""
        return isinstance(self.args[0], torch.Tensor) and is_whole(self.args[0])

    def number(self, position: int, default: float = 0.0) -> float:
        """Return the plain number at `position`, else `default`."""
        argument = self.args[position] if position < len(self.args) else None
        return argument if isinstance(argument, (int, float)) else default

    def length(self, position: int) -> int:
        """Return the length of the first argument along the dimension given by the argument at `position`."""
        tensor = self.args[0]
        dim = self.args[position] if position < len(self.args) else None
        if not isinstance(tensor, torch.Tensor) or not tensor.dim():
            return 1
        dim = dim[0] if isinstance(dim, (list, tuple)) and len(dim) == 1 else dim
        return int(tensor.shape[dim]) if isinstance(dim, int) else int(tensor.numel())


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether `tensor` covers all of its storage."""
    return bool(tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes())


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Return a decorator that registers a rule for ATen operators, named without trailing underscore."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def base_name(name: str) -> str:
    """Return an operator's name without its form: ``add`` for ``aten::_foreach_add_`` and ``aten::add_``."""
    short = name.split("::", 1)[-1]
    if short.startswith("_foreach_"):
        short = short[len("_foreach_") :]
    return short.removesuffix("_") if not short.endswith("__") else short


def indices(result: OperatorResult) -> Guess | None:
    """Return a guess for positions along a dimension, the second result of operators such as `topk`."""
    if result.dtype.is_floating_point:
        return None
    dim = 2 if result.base in ("topk", "kthvalue") else 1
    return between(0, max(0, result.length(dim) - 1))
