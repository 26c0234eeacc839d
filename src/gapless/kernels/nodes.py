"""The nouns of TTIR: `Module`, `Function`, `Block`, `Op` and the type of a value."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

_TENSOR = re.compile(r"tensor<((?:\d+x)*)(.*)>$", re.DOTALL)
_INTEGER = re.compile(r"-?\d+")


class Type(NamedTuple):
    """A block's `shape` (``()`` for a scalar) and what its elements are (``f32``, ``!tt.ptr<f16>``)."""

    shape: tuple[int, ...]
    element: str

    @property
    def pointee(self) -> str:
        """What a pointer points to: ``!tt.ptr<f16, 1>`` to ``f16``; "" for anything else."""
        if not self.element.startswith(("!tt.ptr<", "<")):
            return ""
        return self.element[self.element.index("<") + 1 : -1].split(",")[0].strip()


@lru_cache(maxsize=4096)
def type_of(text: str) -> Type:
    """`Type` of ``tensor<16x32xf32>``, of ``i64`` and of ``!tt.ptr<f16>``."""
    text = text.strip()
    found = _TENSOR.match(text)
    if found is None:
        return Type((), text)
    shape = tuple(int(size) for size in found[1].split("x")[:-1])
    return Type(shape, found[2].split(", #")[0])


@dataclass(slots=True)
class Op:
    """One operation.

    `results`, `operands`: names of values (``%0``, ``%3#1``). `text`: its words without results, attributes
    and types. `given` and `made`: types of operands and results as far as they are written down. `binds`:
    names that a loop's body gets, in the order of its initial values. `targets`: blocks jumped to, with
    arguments.
    """

    name: str
    results: tuple[str, ...] = ()
    operands: tuple[str, ...] = ()
    attributes: dict[str, str] = field(default_factory=dict)
    text: str = ""
    given: tuple[Type, ...] = ()
    made: tuple[Type, ...] = ()
    regions: list[list[Block]] = field(default_factory=list)
    binds: tuple[str, ...] = ()
    targets: tuple[tuple[str, tuple[str, ...]], ...] = ()
    last: tuple[str, ...] = ()  # values that nothing behind this operation asks for
    run: Callable[..., Any] | None = None
    kept: Any = None  # what its handler has found out about it

    def integer(self, key: str, default: int = 0) -> int:
        """The attribute `key` as a number: ``axis = 1 : i32``."""
        found = _INTEGER.search(self.attributes.get(key, ""))
        return int(found[0]) if found else default

    def integers(self, key: str) -> tuple[int, ...]:
        """The attribute `key` as numbers: ``order = array<i32: 1, 0>``."""
        return tuple(int(one) for one in _INTEGER.findall(self.attributes.get(key, "").split(":", 1)[-1]))

    def word(self, key: str) -> str:
        """The attribute `key` without quotes."""
        return self.attributes.get(key, "").strip('"')

    @property
    def type(self) -> Type:
        """The type of its first result (or of what it takes, where that is the same)."""
        return self.made[0] if self.made else self.given[-1] if self.given else Type((), "")


@dataclass(slots=True)
class Block:
    """Operations in a row; `names` and `types` are its arguments'."""

    label: str = ""
    names: tuple[str, ...] = ()
    types: tuple[Type, ...] = ()
    ops: list[Op] = field(default_factory=list)


@dataclass(slots=True)
class Function:
    """A kernel, or a function that it calls."""

    name: str
    names: tuple[str, ...]
    types: tuple[Type, ...]
    blocks: list[Block]
    public: bool = True


@dataclass(slots=True)
class Module:
    """What one compilation gave: the kernel (the public function) and what it calls, by name."""

    functions: dict[str, Function]

    @property
    def kernel(self) -> Function:
        """The public function."""
        return next(one for one in self.functions.values() if one.public)


def every_op(blocks: list[Block]) -> list[Op]:
    """All operations in `blocks`, those of inner regions included, outer ones first."""
    found = []
    for block in blocks:
        for op in block.ops:
            found.append(op)
            for region in op.regions:
                found += every_op(region)
    return found
