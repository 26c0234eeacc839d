"""Conversions between types of elements."""

from __future__ import annotations

from typing import Any

import torch

from gapless.kernels import unsigned
from gapless.kernels.machine import Machine, operation
from gapless.kernels.nodes import Op
from gapless.kernels.ramps import Ramp
from gapless.kernels.values import Tensor, dtype_of


def _wanted(op: Op) -> torch.dtype:
    return dtype_of(op.type.element)


@operation("arith.extf", "arith.truncf", "tt.fp_to_fp")
def floats(machine: Machine, op: Op) -> Tensor:
    value: Tensor = machine.get(op)[0]
    dtype = _wanted(op)
    if "rounding = rtz" in op.text and dtype.itemsize < value.dtype.itemsize:
        return _towards_zero(value, dtype)
    return value.to(dtype)


def _towards_zero(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Where the nearest is too far away from zero, the one before it."""
    near = value.to(dtype)
    beyond = near.to(value.dtype).abs() > value.abs()
    integers = torch.int8 if dtype.itemsize == 1 else torch.int16
    bits = near.view(integers)
    return torch.where(beyond, bits - 1, bits).view(dtype)


@operation("arith.extsi", "arith.sitofp", "arith.index_cast")
def signed(machine: Machine, op: Op) -> Any:
    value = machine.raw(op)[0]
    if type(value) is Ramp:
        dtype = _wanted(op)
        return value.full().to(dtype) if dtype.is_floating_point else value.to(dtype)
    if value.dtype is torch.bool:
        value = -value.to(torch.int8)  # one bit, signed: 0 and -1
    out: Tensor = value.to(_wanted(op))
    return out


@operation("arith.extui", "arith.index_castui")
def zeros_before(machine: Machine, op: Op) -> Tensor:
    return unsigned.widened(machine.get(op)[0]).to(_wanted(op))


@operation("arith.uitofp")
def from_unsigned(machine: Machine, op: Op) -> Tensor:
    value: Tensor = machine.get(op)[0]
    return (value if value.dtype is torch.bool else unsigned.real(value)).to(_wanted(op))


@operation("arith.trunci")
def narrow(machine: Machine, op: Op) -> Tensor:
    value: Tensor = machine.get(op)[0]
    dtype = _wanted(op)
    return (value & 1).bool() if dtype is torch.bool else value.to(dtype)


@operation("arith.fptosi", "arith.fptoui")
def to_integers(machine: Machine, op: Op) -> Tensor:
    """As the GPU converts: what is too large becomes the largest, and NaN 0."""
    return saturated(machine.get(op)[0], _wanted(op), op.name == "arith.fptoui")


def saturated(value: Tensor, dtype: torch.dtype, without_sign: bool = False) -> Tensor:
    """Floats as integers of that type, at most as large as 32 or 64 bits hold."""
    bits = 64 if dtype is torch.int64 else 32
    low, high = (0.0, 2.0**bits - 1) if without_sign else (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1)
    value = value.double().nan_to_num(0.0, high, low).trunc()
    if bits == 32:
        return value.clamp(low, high).long().to(dtype)
    above = value >= 2.0**63
    inner = torch.where(above, value - 2.0**64 if without_sign else 0.0, value.clamp(min=low)).long()
    return inner if without_sign else torch.where(above, torch.iinfo(torch.int64).max, inner)
