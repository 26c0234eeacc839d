"""Unsigned arithmetic on signed integers, as torch computes with signed ones only."""

from __future__ import annotations

import torch

from gapless.kernels.values import Tensor

_LOWEST = torch.iinfo(torch.int64).min


def widen(value: Tensor) -> Tensor:
    """Return the unsigned values as `int64`; 64-bit values keep their bits."""
    if value.dtype in (torch.int64, torch.bool):
        return value.long()
    return value.long() & ((1 << value.dtype.itemsize * 8) - 1)


def order_key(value: Tensor) -> Tensor:
    """Return `int64` values that sort as the unsigned ones do."""
    return value ^ _LOWEST if value.dtype is torch.int64 else widen(value)


def divide(a: Tensor, b: Tensor) -> Tensor:
    """Return the unsigned quotient; any number where `b` is 0."""
    wide, by = widen(a), widen(b)
    by = torch.where(by == 0, 1, by)
    if a.dtype is not torch.int64 or bool(((wide >= 0) & (by > 0)).all()):
        return torch.div(wide, by, rounding_mode="trunc").to(a.dtype)
    half = torch.div(shift_right(wide, torch.ones_like(wide)), by.clamp(min=1), rounding_mode="trunc") << 1
    quotient = half + (order_key(wide - half * by) >= order_key(by)).long()
    return torch.where(by < 0, (order_key(wide) >= order_key(by)).long(), quotient)


def remainder(a: Tensor, b: Tensor) -> Tensor:
    """Return the unsigned remainder; any number where `b` is 0."""
    return (a - divide(a, b) * b).to(a.dtype)


def shift_right(a: Tensor, by: Tensor) -> Tensor:
    """Shift right, filling with zeros."""
    if a.dtype is not torch.int64:
        return (widen(a) >> by.long()).to(a.dtype)
    kept = (torch.ones_like(a) << (64 - by.clamp(1, 63))) - 1
    return torch.where(by == 0, a, (a >> by) & kept)


def high_half(a: Tensor, b: Tensor, signed: bool = False) -> Tensor:
    """Return the upper half of the product."""
    if a.dtype is not torch.int64:
        bits = a.dtype.itemsize * 8
        wide_a, wide_b = (a.long(), b.long()) if signed else (widen(a), widen(b))
        return ((wide_a * wide_b) >> bits).to(a.dtype)  # 32 bits twice fit, with a carry into the sign
    high_a, low_a = shift_right(a, torch.full_like(a, 32)), a & 0xFFFF_FFFF
    high_b, low_b = shift_right(b, torch.full_like(b, 32)), b & 0xFFFF_FFFF
    thirty_two = torch.full((1,), 32, dtype=torch.int64)
    middle = high_a * low_b + shift_right(low_a * low_b, thirty_two)
    rest = (middle & 0xFFFF_FFFF) + low_a * high_b
    out = high_a * high_b + shift_right(middle, thirty_two) + shift_right(rest, thirty_two)
    return out - torch.where(a < 0, b, 0) - torch.where(b < 0, a, 0) if signed else out


def to_double(value: Tensor) -> Tensor:
    """Return the unsigned values as doubles."""
    wide = widen(value)
    out = wide.double()
    return torch.where(wide < 0, out + 2.0**64, out) if value.dtype is torch.int64 else out
