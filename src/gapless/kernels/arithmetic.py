"""Operations on elements: arithmetic, comparisons, functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gapless.kernels import unsigned
from gapless.kernels.machine import HANDLERS, KernelMachine, operation
from gapless.kernels.nodes import Op
from gapless.kernels.ramps import Ramp, add_ramps, multiply_ramp
from gapless.kernels.values import Pointer, Tensor, Unsupported, choose, dtype_of

Function = Callable[..., Tensor]


def _without_zeros(b: Tensor) -> Tensor:
    """Return `b` with zeros replaced by 1: programs whose result is unused may divide by anything."""
    return torch.where(b == 0, 1, b) if bool((b == 0).any()) else b


def quotient(a: Tensor, b: Tensor) -> Tensor:
    """Return the signed quotient, rounded towards zero; any number where `b` is 0."""
    if bool((b == -1).any()):  # negating the lowest number would end the process
        return torch.where(
            b == -1, -a, torch.div(a, torch.where((b == -1) | (b == 0), 1, b), rounding_mode="trunc")
        )
    return torch.div(a, _without_zeros(b), rounding_mode="trunc")


def remainder(a: Tensor, b: Tensor) -> Tensor:
    """Return the signed remainder, with the sign of `a`; any number where `b` is 0."""
    return torch.fmod(a, torch.where((b == -1) | (b == 0), 1, b))


def _floor_quotient(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, _without_zeros(b), rounding_mode="floor")


def _bits_or_bools(on_bits: Function, on_bools: Function) -> Function:
    return lambda a, b: on_bools(a, b) if a.dtype is torch.bool else on_bits(a, b)


_BINARY_FUNCTIONS: dict[str, Function] = {
    "arith.addi": _bits_or_bools(torch.add, torch.logical_xor),
    "arith.subi": _bits_or_bools(torch.sub, torch.logical_xor),
    "arith.muli": _bits_or_bools(torch.mul, torch.logical_and),
    "arith.divsi": quotient,
    "arith.remsi": remainder,
    "arith.floordivsi": _floor_quotient,
    "arith.ceildivsi": lambda a, b: -_floor_quotient(-a, b),
    "arith.divui": unsigned.divide,
    "arith.remui": unsigned.remainder,
    "arith.ceildivui": lambda a, b: unsigned.divide(a + b - 1, b),
    "arith.andi": torch.bitwise_and,
    "arith.ori": torch.bitwise_or,
    "arith.xori": torch.bitwise_xor,
    "arith.shli": torch.bitwise_left_shift,
    "arith.shrsi": torch.bitwise_right_shift,
    "arith.shrui": unsigned.shift_right,
    "arith.maxsi": torch.maximum,
    "arith.minsi": torch.minimum,
    "arith.maxui": lambda a, b: torch.where(unsigned.order_key(a) >= unsigned.order_key(b), a, b),
    "arith.minui": lambda a, b: torch.where(unsigned.order_key(a) <= unsigned.order_key(b), a, b),
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
    "tt.mulhiui": unsigned.high_half,
}

UNARY_FUNCTIONS: dict[str, Function] = {
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

_FLOAT_COMPARISONS: dict[str, Function] = {
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
_INTEGER_COMPARISONS: dict[str, Function] = {
    "eq": torch.eq,
    "ne": torch.ne,
    "slt": torch.lt,
    "sle": torch.le,
    "sgt": torch.gt,
    "sge": torch.ge,
    "ult": lambda a, b: unsigned.order_key(a) < unsigned.order_key(b),
    "ule": lambda a, b: unsigned.order_key(a) <= unsigned.order_key(b),
    "ugt": lambda a, b: unsigned.order_key(a) > unsigned.order_key(b),
    "uge": lambda a, b: unsigned.order_key(a) >= unsigned.order_key(b),
}


def _make_handler(function: Function) -> Callable[[KernelMachine, Op], Tensor]:
    def run(machine: KernelMachine, op: Op) -> Tensor:
        return function(*machine.get(op))

    return run


HANDLERS.update(
    {name: _make_handler(function) for name, function in {**_BINARY_FUNCTIONS, **UNARY_FUNCTIONS}.items()}
)


@operation("arith.addi", "arith.subi")
def add(machine: KernelMachine, op: Op) -> Any:
    a, b = machine.raw(op)
    if type(a) is Ramp or type(b) is Ramp:
        return add_ramps(a, b, 1 if op.name == "arith.addi" else -1)
    return _BINARY_FUNCTIONS[op.name](a, b)


@operation("arith.muli")
def multiply(machine: KernelMachine, op: Op) -> Any:
    a, b = machine.raw(op)
    if type(a) is Ramp or type(b) is Ramp:
        return multiply_ramp(a, b)
    return _BINARY_FUNCTIONS[op.name](a, b)


def _predicate(op: Op) -> str:
    return op.text.split(",")[0].strip()


@operation("arith.cmpi")
def compare(machine: KernelMachine, op: Op) -> Tensor:
    a, b = machine.get(op)
    if a.dtype is torch.bool and _predicate(op).startswith("s"):
        a, b = -a.int(), -b.int()  # one bit, signed: 0 and -1
    return _INTEGER_COMPARISONS[_predicate(op)](a, b)


@operation("arith.cmpf")
def compare_floats(machine: KernelMachine, op: Op) -> Tensor:
    a, b = machine.get(op)
    if a.dtype.itemsize == 1:
        a, b = a.float(), b.float()
    return _FLOAT_COMPARISONS[_predicate(op)](a, b)


@operation("arith.select")
def select(machine: KernelMachine, op: Op) -> Any:
    return choose(*machine.get(op))


@operation("math.fma")
def fma(machine: KernelMachine, op: Op) -> Tensor:
    a, b, c = machine.get(op)
    return a * b + c


@operation("tt.clampf")
def clamp(machine: KernelMachine, op: Op) -> Tensor:
    """Clamp; NaN gives the bound, as in `fmin` and `fmax`, unless the operation propagates NaN."""
    value, low, high = machine.get(op)
    if "propagateNan = all" in op.text:
        return torch.minimum(torch.maximum(value, low), high)
    return torch.fmin(torch.fmax(value, low), high)


@operation("arith.mulsi_extended", "arith.mului_extended")
def long_product(machine: KernelMachine, op: Op) -> Any:
    a, b = machine.get(op)
    return [a * b, unsigned.high_half(a, b, signed=op.name == "arith.mulsi_extended")]


@operation("arith.addui_extended")
def long_sum(machine: KernelMachine, op: Op) -> Any:
    a, b = machine.get(op)
    out = a + b
    return [out, unsigned.order_key(out) < unsigned.order_key(a)]


@operation("math.ctpop", "math.ctlz", "math.cttz")
def bits(machine: KernelMachine, op: Op) -> Tensor:
    return count_bits(op.name, machine.get(op)[0])


def count_bits(name: str, value: Tensor) -> Tensor:
    """Count set bits (``math.ctpop``), or zeros before the first (``ctlz``) or after the last set bit."""
    each = (value.long()[..., None] >> torch.arange(value.dtype.itemsize * 8)) & 1
    if name == "math.ctpop":
        return each.sum(-1).to(value.dtype)
    if name == "math.ctlz":
        each = each.flip(-1)
    return (each.cumsum(-1) == 0).sum(-1).to(value.dtype)


@operation("tt.bitcast", "arith.bitcast")
def bitcast(machine: KernelMachine, op: Op) -> Any:
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
