"""torch's rules for sizes, asked about plain numbers, without the algebra that they load for symbols.

Almost every rule imports `torch.fx.experimental.symbolic_shapes`, and with it SymPy (half a second), to ask
whether a number may be a symbol. Here none is: while a rule runs, they are answered for plain numbers.
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
"""What rules look at and do not load themselves."""


class _Expression:
    """What no number is an instance of."""


def _truth(condition: Any, *_: Any) -> bool:
    return bool(condition)


_ANSWERS: dict[str, dict[str, Any]] = {
    "torch.fx.experimental.symbolic_shapes": {
        "expect_true": _truth,
        "guard_int": int,
        "guard_or_false": _truth,
        "guard_or_true": _truth,
        "guard_size_oblivious": _truth,
        "guarding_hint_or_throw": int,
        "has_guarding_hint": lambda _: True,
        "is_nested_int": lambda _: False,
        "statically_known_true": _truth,
        "sym_and": lambda *all_of: all(all_of),
        "sym_eq": operator.eq,
        "sym_or": lambda *any_of: any(any_of),
    },
    "torch.utils._sympy.functions": {"Max": max},
    "sympy": {"Basic": _Expression},
}


class _Plain(ModuleType):
    """Stands where a module would; whatever else is asked of it is the real one's to answer."""

    def __init__(self, name: str, answers: Mapping[str, Any]) -> None:
        super().__init__(name)
        self.__dict__.update(answers)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system's own questions
            raise AttributeError(name)
        _clear([self])
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def plain_sizes() -> Iterator[None]:
    """While this lasts, no size is a symbol; modules that are loaded already answer themselves."""
    missing = [name for name in _ANSWERS if name not in sys.modules]
    if not missing:
        yield
        return
    importlib.import_module(_CONFIG)
    stands = [_Plain(name, _ANSWERS[name]) for name in missing]
    sys.modules.update({one.__name__: one for one in stands})
    try:
        yield
    finally:
        _clear(stands)


def _clear(stands: list[_Plain]) -> None:
    for one in stands:
        if sys.modules.get(one.__name__) is one:
            del sys.modules[one.__name__]
