"""The parts of TTIR: `Module`, `Function`, `CodeBlock`, `Op` and the type of a value."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

_TENSOR = re.compile(r"tensor<((?:\d+x)*)(.*)>$", re.DOTALL)
_INTEGER = re.compile(r"-?\d+")


class ValueType(NamedTuple):
    """A block's `shape` (``()`` for a scalar) and the type of its elements (``f32``, ``!tt.ptr<f16>``)."""

    shape: tuple[int, ...]
    element: str

    @property
    def pointee(self) -> str:
        """The type a pointer points to: ``f16`` for ``!tt.ptr<f16, 1>``; "" for other types."""
        if not self.element.startswith(("!tt.ptr<", "<")):
            return ""
        return self.element[self.element.index("<") + 1 : -1].split(",")[0].strip()


@lru_cache(maxsize=4096)
def parse_type(text: str) -> ValueType:
    """Parse ``tensor<16x32xf32>``, ``i64`` or ``!tt.ptr<f16>``."""
    text = text.strip()
    match = _TENSOR.match(text)
    if match is None:
        return ValueType((), text)
    shape = tuple(int(size) for size in match[1].split("x")[:-1])
    return ValueType(shape, match[2].split(", #")[0])


@dataclass(slots=True)
class Op:
    """One operation.

    `results`, `operands`: names of values (``%0``, ``%3#1``). `text`: its words without results, attributes
    and types. `operand_types` and `result_types`: as far as they are printed. `binds`: names of a loop body's
    arguments, in the order of its initial values. `targets`: blocks jumped to, with arguments.
    """

    name: str
    results: tuple[str, ...] = ()
    operands: tuple[str, ...] = ()
    attributes: dict[str, str] = field(default_factory=dict)
    text: str = ""
    operand_types: tuple[ValueType, ...] = ()
    result_types: tuple[ValueType, ...] = ()
    regions: list[list[CodeBlock]] = field(default_factory=list)
    binds: tuple[str, ...] = ()
    targets: tuple[tuple[str, tuple[str, ...]], ...] = ()
    last_uses: tuple[str, ...] = ()  # values that no later operation uses
    run: Callable[..., Any] | None = None
    cached: Any = None  # cache for its handler

    def integer(self, key: str, default: int = 0) -> int:
        """Return the attribute `key` as a number: ``axis = 1 : i32``."""
        match = _INTEGER.search(self.attributes.get(key, ""))
        return int(match[0]) if match else default

    def integers(self, key: str) -> tuple[int, ...]:
        """Return the attribute `key` as numbers: ``order = array<i32: 1, 0>``."""
        return tuple(
            int(number) for number in _INTEGER.findall(self.attributes.get(key, "").split(":", 1)[-1])
        )

    def word(self, key: str) -> str:
        """Return the attribute `key` without quotes."""
        return self.attributes.get(key, "").strip('"')

    @property
    def type(self) -> ValueType:
        """The type of its first result (or of its last operand, where they are the same)."""
        return (
            self.result_types[0]
            if self.result_types
            else self.operand_types[-1]
            if self.operand_types
            else ValueType((), "")
        )


@dataclass(slots=True)
class CodeBlock:
    """Consecutive operations; `names` and `types` are those of its arguments."""

    label: str = ""
    names: tuple[str, ...] = ()
    types: tuple[ValueType, ...] = ()
    ops: list[Op] = field(default_factory=list)


@dataclass(slots=True)
class Function:
    """A kernel, or a function that it calls."""

    name: str
    names: tuple[str, ...]
    types: tuple[ValueType, ...]
    blocks: list[CodeBlock]
    public: bool = True


@dataclass(slots=True)
class Module:
    """The result of one compilation: the kernel (the public function) and the functions it calls, by name."""

    functions: dict[str, Function]

    @property
    def kernel(self) -> Function:
        """The public function."""
        return next(function for function in self.functions.values() if function.public)


def all_ops(blocks: list[CodeBlock]) -> list[Op]:
    """Return all operations in `blocks`, those of inner regions included, outer ones first."""
    ops = []
    for block in blocks:
        for op in block.ops:
            ops.append(op)
            for region in op.regions:
                ops += all_ops(region)
    return ops
