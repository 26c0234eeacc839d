"""Unsigned arithmetic on signed integers, which are all that torch computes with."""

from __future__ import annotations

import torch

from gapless.kernels.values import Tensor

_LOWEST = torch.iinfo(torch.int64).min


def widened(value: Tensor) -> Tensor:
    """As `int64`, taken as unsigned; 64 bits stay what they are."""
    if value.dtype in (torch.int64, torch.bool):
        return value.long()
    return value.long() & ((1 << value.dtype.itemsize * 8) - 1)


def ordered(value: Tensor) -> Tensor:
    """`int64` values in the order that unsigned ones have."""
    return value ^ _LOWEST if value.dtype is torch.int64 else widened(value)


def divided(a: Tensor, b: Tensor) -> Tensor:
    """The unsigned quotient; anything where `b` is 0."""
    wide, by = widened(a), widened(b)
    by = torch.where(by == 0, 1, by)
    if a.dtype is not torch.int64 or bool(((wide >= 0) & (by > 0)).all()):
        return torch.div(wide, by, rounding_mode="trunc").to(a.dtype)
    half = torch.div(shifted(wide, torch.ones_like(wide)), by.clamp(min=1), rounding_mode="trunc") << 1
    quotient = half + (ordered(wide - half * by) >= ordered(by)).long()
    return torch.where(by < 0, (ordered(wide) >= ordered(by)).long(), quotient)


def remainder(a: Tensor, b: Tensor) -> Tensor:
    """The unsigned remainder; anything where `b` is 0."""
    return (a - divided(a, b) * b).to(a.dtype)


def shifted(a: Tensor, by: Tensor) -> Tensor:
    """A logical shift to the right."""
    if a.dtype is not torch.int64:
        return (widened(a) >> by.long()).to(a.dtype)
    kept = (torch.ones_like(a) << (64 - by.clamp(1, 63))) - 1
    return torch.where(by == 0, a, (a >> by) & kept)


def high(a: Tensor, b: Tensor, signed: bool = False) -> Tensor:
    """The upper half of the product."""
    if a.dtype is not torch.int64:
        bits = a.dtype.itemsize * 8
        one, two = (a.long(), b.long()) if signed else (widened(a), widened(b))
        return ((one * two) >> bits).to(a.dtype)  # 32 bits twice fit, with a carry into the sign
    one, low = shifted(a, torch.full_like(a, 32)), a & 0xFFFF_FFFF
    two, other = shifted(b, torch.full_like(b, 32)), b & 0xFFFF_FFFF
    thirty_two = torch.full((1,), 32, dtype=torch.int64)
    middle = one * other + shifted(low * other, thirty_two)
    rest = (middle & 0xFFFF_FFFF) + low * two
    out = one * two + shifted(middle, thirty_two) + shifted(rest, thirty_two)
    return out - torch.where(a < 0, b, 0) - torch.where(b < 0, a, 0) if signed else out


def real(value: Tensor) -> Tensor:
    """As a double, taken as unsigned."""
    wide = widened(value)
    out = wide.double()
    return torch.where(wide < 0, out + 2.0**64, out) if value.dtype is torch.int64 else out
