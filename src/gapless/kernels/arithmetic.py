"""Element by element: arithmetic, comparisons, functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gapless.kernels import unsigned
from gapless.kernels.machine import HANDLERS, Machine, operation
from gapless.kernels.nodes import Op
from gapless.kernels.ramps import Ramp, added, multiplied
from gapless.kernels.values import Pointer, Tensor, Unsupported, chosen, dtype_of

Function = Callable[..., Tensor]


def _safe(b: Tensor) -> Tensor:
    """A divisor that the CPU does not stop at: what programs that are elsewhere divide by may be anything."""
    return torch.where(b == 0, 1, b) if bool((b == 0).any()) else b


def quotient(a: Tensor, b: Tensor) -> Tensor:
    """The signed quotient, towards zero; anything where `b` is 0."""
    if bool((b == -1).any()):  # the lowest number has no opposite, which ends the process
        return torch.where(
            b == -1, -a, torch.div(a, torch.where((b == -1) | (b == 0), 1, b), rounding_mode="trunc")
        )
    return torch.div(a, _safe(b), rounding_mode="trunc")


def remainder(a: Tensor, b: Tensor) -> Tensor:
    """The signed remainder, with the sign of `a`; anything where `b` is 0."""
    return torch.fmod(a, torch.where((b == -1) | (b == 0), 1, b))


def _floor_quotient(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, _safe(b), rounding_mode="floor")


def _logical(on_bits: Function, on_bools: Function) -> Function:
    return lambda a, b: on_bools(a, b) if a.dtype is torch.bool else on_bits(a, b)


_BINARY: dict[str, Function] = {
    "arith.addi": _logical(torch.add, torch.logical_xor),
    "arith.subi": _logical(torch.sub, torch.logical_xor),
    "arith.muli": _logical(torch.mul, torch.logical_and),
    "arith.divsi": quotient,
    "arith.remsi": remainder,
    "arith.floordivsi": _floor_quotient,
    "arith.ceildivsi": lambda a, b: -_floor_quotient(-a, b),
    "arith.divui": unsigned.divided,
    "arith.remui": unsigned.remainder,
    "arith.ceildivui": lambda a, b: unsigned.divided(a + b - 1, b),
    "arith.andi": torch.bitwise_and,
    "arith.ori": torch.bitwise_or,
    "arith.xori": torch.bitwise_xor,
    "arith.shli": torch.bitwise_left_shift,
    "arith.shrsi": torch.bitwise_right_shift,
    "arith.shrui": unsigned.shifted,
    "arith.maxsi": torch.maximum,
    "arith.minsi": torch.minimum,
    "arith.maxui": lambda a, b: torch.where(unsigned.ordered(a) >= unsigned.ordered(b), a, b),
    "arith.minui": lambda a, b: torch.where(unsigned.ordered(a) <= unsigned.ordered(b), a, b),
    "arith.addf": torch.add,
    "arith.subf": torch.sub,
    "arith.mulf": torch.mul,
    "arith.divf": torch.div,
    "tt.precise_divf": torch.div,
    "arith.remf": torch.fmod,
    "arith.maxnumf": torch.fmax,
    "arith.minnumf": torch.fmin,
    "arith.maximumf": torch.maximum,
    "arith.minimumf": torch.minimum,
    "math.powf": torch.pow,
    "math.fpowi": torch.pow,
    "math.ipowi": torch.pow,
    "math.atan2": torch.atan2,
    "math.copysign": torch.copysign,
    "tt.mulhiui": unsigned.high,
}

UNARY: dict[str, Function] = {
    "arith.negf": torch.neg,
    "math.absf": torch.abs,
    "math.absi": torch.abs,
    "math.exp": torch.exp,
    "math.exp2": torch.exp2,
    "math.expm1": torch.expm1,
    "math.log": torch.log,
    "math.log2": torch.log2,
    "math.log10": torch.log10,
    "math.log1p": torch.log1p,
    "math.sqrt": torch.sqrt,
    "tt.precise_sqrt": torch.sqrt,
    "math.rsqrt": torch.rsqrt,
    "math.cbrt": lambda x: torch.sign(x) * torch.abs(x).pow(1 / 3),
    "math.sin": torch.sin,
    "math.cos": torch.cos,
    "math.tan": torch.tan,
    "math.asin": torch.asin,
    "math.acos": torch.acos,
    "math.atan": torch.atan,
    "math.sinh": torch.sinh,
    "math.cosh": torch.cosh,
    "math.tanh": torch.tanh,
    "math.asinh": torch.asinh,
    "math.acosh": torch.acosh,
    "math.atanh": torch.atanh,
    "math.erf": torch.erf,
    "math.erfc": torch.erfc,
    "math.floor": torch.floor,
    "math.ceil": torch.ceil,
    "math.trunc": torch.trunc,
    "math.round": lambda x: torch.trunc(x + torch.copysign(torch.tensor(0.5, dtype=x.dtype), x)),
    "math.roundeven": torch.round,
    "math.isnan": torch.isnan,
    "math.isinf": torch.isinf,
    "math.isfinite": torch.isfinite,
}

_FLOATS: dict[str, Function] = {
    "false": lambda a, b: torch.zeros_like(a, dtype=torch.bool) & (b == b),
    "oeq": torch.eq,
    "ogt": torch.gt,
    "oge": torch.ge,
    "olt": torch.lt,
    "ole": torch.le,
    "one": lambda a, b: (a < b) | (a > b),
    "ord": lambda a, b: (a == a) & (b == b),
    "ueq": lambda a, b: ~((a < b) | (a > b)),
    "ugt": lambda a, b: ~(a <= b),
    "uge": lambda a, b: ~(a < b),
    "ult": lambda a, b: ~(a >= b),
    "ule": lambda a, b: ~(a > b),
    "une": torch.ne,
    "uno": lambda a, b: (a != a) | (b != b),
    "true": lambda a, b: torch.ones_like(a, dtype=torch.bool) | (b == b),
}
_INTEGERS: dict[str, Function] = {
    "eq": torch.eq,
    "ne": torch.ne,
    "slt": torch.lt,
    "sle": torch.le,
    "sgt": torch.gt,
    "sge": torch.ge,
    "ult": lambda a, b: unsigned.ordered(a) < unsigned.ordered(b),
    "ule": lambda a, b: unsigned.ordered(a) <= unsigned.ordered(b),
    "ugt": lambda a, b: unsigned.ordered(a) > unsigned.ordered(b),
    "uge": lambda a, b: unsigned.ordered(a) >= unsigned.ordered(b),
}


def _apply(function: Function) -> Callable[[Machine, Op], Tensor]:
    def run(machine: Machine, op: Op) -> Tensor:
        return function(*machine.get(op))

    return run


HANDLERS.update({name: _apply(function) for name, function in {**_BINARY, **UNARY}.items()})


@operation("arith.addi", "arith.subi")
def add(machine: Machine, op: Op) -> Any:
    a, b = machine.raw(op)
    if type(a) is Ramp or type(b) is Ramp:
        return added(a, b, 1 if op.name == "arith.addi" else -1)
    return _BINARY[op.name](a, b)


@operation("arith.muli")
def multiply(machine: Machine, op: Op) -> Any:
    a, b = machine.raw(op)
    if type(a) is Ramp or type(b) is Ramp:
        return multiplied(a, b)
    return _BINARY[op.name](a, b)


def _predicate(op: Op) -> str:
    return op.text.split(",")[0].strip()


@operation("arith.cmpi")
def compare(machine: Machine, op: Op) -> Tensor:
    a, b = machine.get(op)
    if a.dtype is torch.bool and _predicate(op).startswith("s"):
        a, b = -a.int(), -b.int()  # one bit, signed: 0 and -1
    return _INTEGERS[_predicate(op)](a, b)


@operation("arith.cmpf")
def compare_floats(machine: Machine, op: Op) -> Tensor:
    a, b = machine.get(op)
    if a.dtype.itemsize == 1:
        a, b = a.float(), b.float()
    return _FLOATS[_predicate(op)](a, b)


@operation("arith.select")
def select(machine: Machine, op: Op) -> Any:
    return chosen(*machine.get(op))


@operation("math.fma")
def fma(machine: Machine, op: Op) -> Tensor:
    a, b, c = machine.get(op)
    return a * b + c


@operation("tt.clampf")
def clamp(machine: Machine, op: Op) -> Tensor:
    """Without a word about NaN it gives the bound, as `fmin` and `fmax` do."""
    value, low, high = machine.get(op)
    if "propagateNan = all" in op.text:
        return torch.minimum(torch.maximum(value, low), high)
    return torch.fmin(torch.fmax(value, low), high)


@operation("arith.mulsi_extended", "arith.mului_extended")
def long_product(machine: Machine, op: Op) -> Any:
    a, b = machine.get(op)
    return [a * b, unsigned.high(a, b, signed=op.name == "arith.mulsi_extended")]


@operation("arith.addui_extended")
def long_sum(machine: Machine, op: Op) -> Any:
    a, b = machine.get(op)
    out = a + b
    return [out, unsigned.ordered(out) < unsigned.ordered(a)]


@operation("math.ctpop", "math.ctlz", "math.cttz")
def bits(machine: Machine, op: Op) -> Tensor:
    return counted(op.name, machine.get(op)[0])


def counted(name: str, value: Tensor) -> Tensor:
    """How many bits are set (``math.ctpop``), or are 0 before the first (``ctlz``) or behind the last one."""
    each = (value.long()[..., None] >> torch.arange(value.dtype.itemsize * 8)) & 1
    if name == "math.ctpop":
        return each.sum(-1).to(value.dtype)
    if name == "math.ctlz":
        each = each.flip(-1)
    return (each.cumsum(-1) == 0).sum(-1).to(value.dtype)


@operation("tt.bitcast", "arith.bitcast")
def bitcast(machine: Machine, op: Op) -> Any:
    value, kind = machine.get(op)[0], op.type
    if not isinstance(value, Pointer):
        return value.view(dtype_of(kind.element))
    before, after = dtype_of(value.element).itemsize, dtype_of(kind.pointee).itemsize
    if value.memory is None or before == after:
        return Pointer(kind.pointee, value.memory, value.at)
    if before % after == 0:
        return Pointer(kind.pointee, value.memory, value.places * (before // after))
    if bool((value.places * before % after).any()):
        raise Unsupported("a pointer cast to a type that it is not aligned to")
    return Pointer(kind.pointee, value.memory, value.places * before // after)
