"""Evaluate inline PTX of plain instructions on registers: arithmetic, comparisons, predicates.

https://docs.nvidia.com/cuda/parallel-thread-execution, sections 9.7.1 to 9.7.9. Instructions that move data
between threads or memory, or pack several values into a register, are not evaluated.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import torch

from gapless.kernels import unsigned
from gapless.kernels.arithmetic import quotient
from gapless.kernels.machine import KernelMachine, operation
from gapless.kernels.nodes import Op
from gapless.kernels.values import Tensor, Unsupported, dtype_of

_TYPES = {
    "f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16,
    "s32": torch.int32, "u32": torch.int32, "b32": torch.int32, "s64": torch.int64, "u64": torch.int64,
    "b64": torch.int64, "s16": torch.int16, "u16": torch.int16, "b16": torch.int16, "pred": torch.bool,
}  # fmt: skip
_COMPARISONS: dict[str, Callable[[Any, Any], Tensor]] = {
    "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
}  # fmt: skip
_MODIFIERS = frozenset(["approx", "ftz", "rn", "rz", "full", "lo"])
_STATEMENT = re.compile(r"(?:@(!?)(\$?[%\w]+)\s+)?([a-z][a-z0-9]*)((?:\.\w+)*)\s*(.*)$", re.DOTALL)
_ESCAPED = re.compile(r"\\([0-9A-Fa-f]{2})")
_UNKNOWN_REGISTERS = ("%globaltimer", "%clock", "%clock64", "%smid", "%laneid")
"""Special registers whose values depend on the hardware; they read as 0."""


def _shift_bits(by: Tensor, value: Tensor, left: bool) -> Tensor:
    by = by.long().clamp(0, value.dtype.itemsize * 8 - 1).to(value.dtype)
    return value << by if left else value >> by


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": torch.abs,
    "add": torch.add,
    "and": torch.bitwise_and,
    "cos": torch.cos,
    "div": lambda a, b: a / b if a.dtype.is_floating_point else quotient(a, b),
    "ex2": torch.exp2,
    "fma": lambda a, b, c: a * b + c,
    "lg2": torch.log2,
    "mad": lambda a, b, c: a * b + c,
    "max": lambda a, b: torch.fmax(a, b) if a.dtype.is_floating_point else torch.maximum(a, b),
    "min": lambda a, b: torch.fmin(a, b) if a.dtype.is_floating_point else torch.minimum(a, b),
    "mov": lambda a: a,
    "mul": torch.mul,
    "neg": torch.neg,
    "not": torch.bitwise_not,
    "or": torch.bitwise_or,
    "rcp": torch.reciprocal,
    "rsqrt": torch.rsqrt,
    "selp": lambda a, b, p: torch.where(p, a, b),
    "shl": lambda a, by: _shift_bits(by, a, True),
    "shr": lambda a, by: _shift_bits(by, a, False),
    "sin": torch.sin,
    "sqrt": torch.sqrt,
    "sub": torch.sub,
    "tanh": torch.tanh,
    "xor": torch.bitwise_xor,
}
_ON_UNSIGNED = {
    "div": unsigned.divide,
    "shr": lambda a, by: unsigned.shift_right(a, by.to(a.dtype)),
    "max": lambda a, b: torch.where(unsigned.order_key(a) >= unsigned.order_key(b), a, b),
    "min": lambda a, b: torch.where(unsigned.order_key(a) <= unsigned.order_key(b), a, b),
}


class _Registers:
    """Registers by name; a write under a predicate keeps the old value elsewhere."""

    def __init__(self, values: dict[str, Tensor]) -> None:
        self.values = values

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        if name in self.values:
            value = self.values[name]
            if value.dtype == dtype:
                return value
            if torch.bool in (dtype, value.dtype) or value.dtype.itemsize != dtype.itemsize:
                raise Unsupported("inline PTX")
            return value.view(dtype)
        if name in _UNKNOWN_REGISTERS:
            return torch.zeros(1, dtype=dtype)
        return torch.tensor([_immediate(name)], dtype=dtype)

    def write(self, name: str, value: Tensor, where: Tensor | None) -> None:
        before = self.values.get(name)
        if where is not None and before is not None and before.dtype.itemsize == value.dtype.itemsize:
            value = torch.where(where, value, before.view(value.dtype))
        self.values[name] = value


def _immediate(text: str) -> float:
    try:
        if text.lower().startswith("0f"):
            return float(struct.unpack("<f", int(text[2:], 16).to_bytes(4, "little"))[0])
        if text.lower().startswith("0d"):
            return float(struct.unpack("<d", int(text[2:], 16).to_bytes(8, "little"))[0])
        if re.fullmatch(r"[-+]?(0[xX][0-9a-fA-F]+|\d+)[uU]?", text):
            return int(text.rstrip("uU"), 0)
        return float(text)
    except (ValueError, struct.error):
        raise Unsupported("inline PTX") from None


def run_ptx(text: str, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Run PTX on registers and return all of them.

    Raises:
        Unsupported: an instruction is not known.
    """
    text = _ESCAPED.sub(lambda escape: chr(int(escape[1], 16)), text)
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    registers = _Registers(dict(values))
    for statement in re.split(r"[;{}]", text):
        if statement.strip() and not statement.strip().startswith(".reg"):
            _run_statement(statement.strip(), registers)
    return registers.values


def _run_statement(statement: str, registers: _Registers) -> None:
    parsed = _STATEMENT.match(statement)
    if parsed is None:
        raise Unsupported("inline PTX")
    name, words = parsed[3], [word for word in parsed[4].split(".") if word]
    kinds = [word for word in words if word in _TYPES]
    target, *operands = (part.strip() for part in parsed[5].split(","))
    comparisons = [word for word in words if word in _COMPARISONS] if name == "setp" else []
    rest = [
        word for word in words if word not in _TYPES and word not in _MODIFIERS and word not in comparisons
    ]
    if len(kinds) != 1 or rest or (name == "setp") != bool(comparisons):
        raise Unsupported("inline PTX")
    dtype = _TYPES[kinds[0]]
    arguments = [
        registers.read(operand, torch.bool if name == "selp" and place == 2 else dtype)
        for place, operand in enumerate(operands)
    ]
    signed = not kinds[0].startswith("u")
    if comparisons:
        keys = arguments if signed else [unsigned.order_key(argument) for argument in arguments]
        out = _COMPARISONS[comparisons[0]](*keys)
    else:
        function = _FUNCTIONS.get(name) if signed else _ON_UNSIGNED.get(name, _FUNCTIONS.get(name))
        if function is None:
            raise Unsupported("inline PTX")
        out = function(*arguments)
    where = registers.read(parsed[2], torch.bool) if parsed[2] else None
    registers.write(target, out, ~where if where is not None and parsed[1] else where)


@operation("tt.elementwise_inline_asm")
def inline_ptx(machine: KernelMachine, op: Op) -> Any:
    end = op.text.rindex('"')
    text = op.text[1:end]
    blocks = machine.get(op)
    if op.integer("packed_element", 1) != 1 or any(block.dtype.itemsize < 4 for block in blocks):
        raise Unsupported("inline PTX")
    kinds = op.result_types or (op.type,)
    values = {f"${len(kinds) + number}": block for number, block in enumerate(blocks)}
    try:
        registers = run_ptx(text, values)
        out = [registers[f"${number}"] for number in range(len(kinds))]
        return [_reinterpret(value, dtype_of(kind.element)) for value, kind in zip(out, kinds, strict=True)]
    except (KeyError, TypeError, RuntimeError) as error:
        raise Unsupported("inline PTX") from error


def _reinterpret(value: Tensor, dtype: torch.dtype) -> Tensor:
    if value.dtype == dtype:
        return value
    if value.dtype.itemsize != dtype.itemsize:
        raise Unsupported("inline PTX")
    return value.view(dtype)
