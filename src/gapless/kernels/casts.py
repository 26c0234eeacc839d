"""Conversions between element types."""

from __future__ import annotations

from typing import Any

import torch

from gapless.kernels import unsigned
from gapless.kernels.machine import KernelMachine, operation
from gapless.kernels.nodes import Op
from gapless.kernels.ramps import Ramp
from gapless.kernels.values import Tensor, dtype_of


def _result_dtype(op: Op) -> torch.dtype:
    return dtype_of(op.type.element)


@operation("arith.extf", "arith.truncf", "tt.fp_to_fp")
def cast_float(machine: KernelMachine, op: Op) -> Tensor:
    value: Tensor = machine.get(op)[0]
    dtype = _result_dtype(op)
    if "rounding = rtz" in op.text and dtype.itemsize < value.dtype.itemsize:
        return _round_towards_zero(value, dtype)
    return value.to(dtype)


def _round_towards_zero(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert with rounding towards zero: step back where the nearest value is too large."""
    near = value.to(dtype)
    beyond = near.to(value.dtype).abs() > value.abs()
    integers = torch.int8 if dtype.itemsize == 1 else torch.int16
    bits = near.view(integers)
    return torch.where(beyond, bits - 1, bits).view(dtype)


@operation("arith.extsi", "arith.sitofp", "arith.index_cast")
def cast_signed(machine: KernelMachine, op: Op) -> Any:
    value = machine.raw(op)[0]
    if type(value) is Ramp:
        dtype = _result_dtype(op)
        return value.full().to(dtype) if dtype.is_floating_point else value.to(dtype)
    if value.dtype is torch.bool:
        value = -value.to(torch.int8)  # one bit, signed: 0 and -1
    out: Tensor = value.to(_result_dtype(op))
    return out


@operation("arith.extui", "arith.index_castui")
def extend_unsigned(machine: KernelMachine, op: Op) -> Tensor:
    return unsigned.widen(machine.get(op)[0]).to(_result_dtype(op))


@operation("arith.uitofp")
def unsigned_to_float(machine: KernelMachine, op: Op) -> Tensor:
    value: Tensor = machine.get(op)[0]
    return (value if value.dtype is torch.bool else unsigned.to_double(value)).to(_result_dtype(op))


@operation("arith.trunci")
def truncate_integer(machine: KernelMachine, op: Op) -> Tensor:
    value: Tensor = machine.get(op)[0]
    dtype = _result_dtype(op)
    return (value & 1).bool() if dtype is torch.bool else value.to(dtype)


@operation("arith.fptosi", "arith.fptoui")
def float_to_integer(machine: KernelMachine, op: Op) -> Tensor:
    """Convert as the GPU does: too large values become the largest integer, NaN becomes 0."""
    return saturate(machine.get(op)[0], _result_dtype(op), op.name == "arith.fptoui")


def saturate(value: Tensor, dtype: torch.dtype, without_sign: bool = False) -> Tensor:
    """Convert floats to integers of that type, saturated at the range of 32 or 64 bits."""
    bits = 64 if dtype is torch.int64 else 32
    low, high = (0.0, 2.0**bits - 1) if without_sign else (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1)
    value = value.double().nan_to_num(0.0, high, low).trunc()
    if bits == 32:
        return value.clamp(low, high).long().to(dtype)
    above = value >= 2.0**63
    inner = torch.where(above, value - 2.0**64 if without_sign else 0.0, value.clamp(min=low)).long()
    return inner if without_sign else torch.where(above, torch.iinfo(torch.int64).max, inner)
