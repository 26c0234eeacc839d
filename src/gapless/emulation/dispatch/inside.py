"""Run the body of a torch Python function with the function mode still on.

torch's own Python functions begin by checking for overrides and hand themselves to the mode, which is off
while it handles the call: everything inside the body would go unseen (in ``Tensor.backward`` a whole backward
pass). A copy of the function, whose globals answer that check with "no", runs the same code with the mode on.
The copy reads the live globals of the original, so later changes of the module count.
"""

from __future__ import annotations

import builtins
from types import FunctionType
from typing import Any

import torch

_QUESTIONS = frozenset({"has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"})


def _no(*_: object) -> bool:
    return False


class Overlay(dict[str, Any]):
    """Globals with a few names replaced; all others are looked up in the original at each access."""

    def __init__(self, original: dict[str, Any], replaced: dict[str, Any]) -> None:
        super().__init__(replaced)
        self._original = original
        self.setdefault("__builtins__", original.get("__builtins__", builtins))

    def __missing__(self, name: str) -> Any:
        return self._original[name]


class Proxy:
    """A module with a few names replaced, for code that checks through ``torch.overrides.…``."""

    def __init__(self, module: Any, replaced: dict[str, Any]) -> None:
        self.__dict__.update(replaced)
        self.__dict__["_module"] = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_module"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_module"], name, value)


def without_override_check(function: FunctionType) -> FunctionType | None:
    """Return a copy of `function` that skips the override check; None if it has no check we recognize."""
    questions = _QUESTIONS.intersection(function.__code__.co_names)
    if not questions:
        return None
    replaced: dict[str, Any] = dict.fromkeys(questions, _no)
    if "overrides" in function.__code__.co_names and function.__globals__.get("torch") is torch:
        replaced["torch"] = Proxy(torch, {"overrides": Proxy(torch.overrides, dict.fromkeys(questions, _no))})
    overlay = Overlay(function.__globals__, replaced)
    copy = FunctionType(
        function.__code__, overlay, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__ = function.__qualname__
    return copy
