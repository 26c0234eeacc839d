"""Runs torch's shape rules on plain numbers without loading the algebra for symbols.

Almost every rule imports `torch.fx.experimental.symbolic_shapes`, and with it SymPy (half a second), to ask
whether a number is a symbol. Here none is: while a rule runs, small modules answer for plain numbers.
"""

from __future__ import annotations

import importlib
import operator
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_CONFIG = "torch.fx.experimental._config"
"""A module that rules use without importing it."""


class _Expression:
    """A class without instances, for ``isinstance`` tests of numbers."""


def _as_bool(condition: Any, *_: Any) -> bool:
    return bool(condition)


_PLAIN_FUNCTIONS: dict[str, dict[str, Any]] = {
    "torch.fx.experimental.symbolic_shapes": {
        "expect_true": _as_bool,
        "guard_int": int,
        "guard_or_false": _as_bool,
        "guard_or_true": _as_bool,
        "guard_size_oblivious": _as_bool,
        "guarding_hint_or_throw": int,
        "has_guarding_hint": lambda _: True,
        "is_nested_int": lambda _: False,
        "statically_known_true": _as_bool,
        "sym_and": lambda *all_of: all(all_of),
        "sym_eq": operator.eq,
        "sym_or": lambda *any_of: any(any_of),
    },
    "torch.utils._sympy.functions": {"Max": max},
    "sympy": {"Basic": _Expression},
}


class _PlainModule(ModuleType):
    """Replaces a module; other attributes load the real one."""

    def __init__(self, name: str, answers: Mapping[str, Any]) -> None:
        super().__init__(name)
        self.__dict__.update(answers)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # queries of the import system
            raise AttributeError(name)
        _remove([self])
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def plain_sizes() -> Iterator[None]:
    """Answer questions about symbols for plain numbers inside the block; loaded modules stay in place."""
    missing = [name for name in _PLAIN_FUNCTIONS if name not in sys.modules]
    if not missing:
        yield
        return
    importlib.import_module(_CONFIG)
    replacements = [_PlainModule(name, _PLAIN_FUNCTIONS[name]) for name in missing]
    sys.modules.update({module.__name__: module for module in replacements})
    try:
        yield
    finally:
        _remove(replacements)


def _remove(modules: list[_PlainModule]) -> None:
    for module in modules:
        if sys.modules.get(module.__name__) is module:
            del sys.modules[module.__name__]
