"""Functions of CUDA's libdevice, by symbol."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import torch

from gapless.kernels import arithmetic, unsigned
from gapless.kernels.casts import saturate
from gapless.kernels.machine import KernelMachine, operation
from gapless.kernels.nodes import Op
from gapless.kernels.values import Tensor, Unsupported, dtype_of

Function = Callable[..., Tensor]
_UNARY = arithmetic.UNARY_FUNCTIONS

_SHARED_NAMES = (
    "acos acosh asin asinh atan atanh cbrt ceil cos cosh erf erfc exp exp2 expm1 floor log log10 log1p log2 "
    "rsqrt sin sinh sqrt tan tanh trunc round"
)
_FUNCTIONS: dict[str, Function] = {name: _UNARY[f"math.{name}"] for name in _SHARED_NAMES.split()}
_FUNCTIONS |= {
    "abs": torch.abs,
    "fabs": torch.abs,
    "llabs": torch.abs,
    "atan2": torch.atan2,
    "copysign": torch.copysign,
    "cospi": lambda x: torch.cos(x * math.pi),
    "sinpi": lambda x: torch.sin(x * math.pi),
    "cyl_bessel_i0": torch.special.i0,
    "cyl_bessel_i1": torch.special.i1,
    "erfcinv": lambda x: torch.erfinv(1 - x),
    "erfcx": torch.special.erfcx,
    "erfinv": torch.erfinv,
    "exp10": lambda x: torch.pow(10.0, x),
    "fdim": lambda a, b: torch.where(a > b, a - b, torch.zeros_like(a - b)),
    "fma": lambda a, b, c: a * b + c,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "fmod": torch.fmod,
    "hypot": torch.hypot,
    "isfinite": torch.isfinite,
    "finite": torch.isfinite,
    "isinf": torch.isinf,
    "isnan": torch.isnan,
    "signbit": torch.signbit,
    "j0": torch.special.bessel_j0,
    "j1": torch.special.bessel_j1,
    "y0": torch.special.bessel_y0,
    "y1": torch.special.bessel_y1,
    "ldexp": lambda x, by: torch.ldexp(x, by),
    "lgamma": torch.lgamma,
    "tgamma": lambda x: (
        torch.exp(torch.lgamma(x)) * torch.where((x < 0) & (torch.floor(x) % 2 != 0), -1.0, 1.0)
    ),
    "logb": lambda x: torch.floor(torch.log2(torch.abs(x))),
    "max": torch.maximum,
    "min": torch.minimum,
    "mulhi": lambda a, b: unsigned.high_half(a, b, signed=True),
    "umulhi": unsigned.high_half,
    "mul24": torch.mul,
    "nearbyint": torch.round,
    "rint": torch.round,
    "nextafter": torch.nextafter,
    "normcdf": torch.special.ndtr,
    "normcdfinv": torch.special.ndtri,
    "pow": torch.pow,
    "powi": torch.pow,
    "rcbrt": lambda x: 1 / _UNARY["math.cbrt"](x),
    "rcp": torch.reciprocal,
    "remainder": lambda a, b: a - b * torch.round(a / b),
    "rhypot": lambda a, b: 1 / torch.hypot(a, b),
    "saturate": lambda x: x.clamp(0.0, 1.0).nan_to_num(0.0),
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "divide": torch.div,
    "float_as_int": lambda x: x.view(torch.int32),
    "float_as_uint": lambda x: x.view(torch.int32),
    "int_as_float": lambda x: x.view(torch.float32),
    "uint_as_float": lambda x: x.view(torch.float32),
    "double_as_longlong": lambda x: x.view(torch.int64),
    "longlong_as_double": lambda x: x.view(torch.float64),
}
_BIT_COUNTS = {
    "popc": "math.ctpop", "popcll": "math.ctpop", "clz": "math.ctlz", "clzll": "math.ctlz",
}  # fmt: skip
_ROUNDINGS = {"rn": torch.round, "rz": torch.trunc, "ru": torch.ceil, "rd": torch.floor}
_TO_INTEGER = re.compile(r"(?:float|double)2(u?)(?:int|ll)_(rn|rz|ru|rd)$")
_TO_FLOAT = re.compile(r"(u?)(?:int|ll)2(?:float|double)(?:_r[nzud])?$")
_ROUND_TO_INTEGER = re.compile(r"ll?(rint|round)f?$")


def find_function(symbol: str) -> Function:
    """Return the function that computes ``__nv_…``, before the result is cast to its type.

    Raises:
        Unsupported: the function is not known.
    """
    name = symbol.removeprefix("__nv_").removeprefix("fast_")
    if (conversion := _TO_INTEGER.match(name)) is not None:
        to = _ROUNDINGS[conversion[2]]
        return lambda x: saturate(to(x), torch.int64)
    if (conversion := _TO_FLOAT.match(name)) is not None:
        return unsigned.to_double if conversion[1] else torch.Tensor.double
    if (conversion := _ROUND_TO_INTEGER.match(name)) is not None:
        rounds = _FUNCTIONS["rint" if conversion[1] == "rint" else "round"]
        return lambda x: saturate(rounds(x), torch.int64)
    for candidate in _spellings(name):
        if candidate in _FUNCTIONS:
            return _FUNCTIONS[candidate]
    raise Unsupported(f"the function {symbol}")


def _spellings(name: str) -> list[str]:
    """Return the name without suffixes for type and rounding, as in ``fsqrt_rn``, ``sqrtf``, ``isnand``."""
    plain = re.sub(r"_(rn|rz|ru|rd)$", "", name)
    spellings = [name, plain]
    if plain != name:
        spellings.append(plain[1:])  # fadd_rn, dadd_rn
    spellings += [spelling[:-1] for spelling in spellings if spelling.endswith(("f", "d"))]
    if plain.startswith("f"):
        spellings.append(plain[1:])  # fdividef
        spellings.append(plain[1:-1])
    return spellings


@operation("tt.extern_elementwise")
def call_libdevice(machine: KernelMachine, op: Op) -> Tensor:
    if op.cached is None:
        symbol = op.word("symbol")
        kind = symbol.removeprefix("__nv_")
        op.cached = _make_bit_count(kind) if kind in _BIT_COUNTS else find_function(symbol)
    out: Tensor = op.cached(*machine.get(op))
    return out.to(dtype_of(op.type.element))


def _make_bit_count(kind: str) -> Function:
    name = _BIT_COUNTS[kind]
    return lambda value: arithmetic.count_bits(name, value)
