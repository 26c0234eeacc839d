"""What dtypes can hold, and what their values are added up in."""

from __future__ import annotations

import torch
from torch import dtype

HALVES = (torch.float16, torch.bfloat16)


def wide(dtype: dtype) -> dtype:
    """What values of `dtype` are added up in: float32 for half precision, else `dtype` itself."""
    return torch.float32 if dtype in HALVES else dtype


def limits(dtype: dtype) -> tuple[float, float]:
    """What no value of `dtype`, real or bool, goes beyond."""
    if dtype.is_floating_point:
        return -torch.inf, torch.inf
    if dtype == torch.bool:
        return False, True
    return torch.iinfo(dtype).min, torch.iinfo(dtype).max
