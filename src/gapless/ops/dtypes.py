"""Ranges of dtypes, and the dtypes to sum their values in."""

from __future__ import annotations

import torch
from torch import dtype

HALF_DTYPES = (torch.float16, torch.bfloat16)
"""Dtypes too narrow to sum many values in."""


def sum_dtype(dtype: dtype) -> dtype:
    """Return the dtype to sum values of `dtype` in: float32 for half precision, else `dtype`."""
    return torch.float32 if dtype in HALF_DTYPES else dtype


def dtype_limits(dtype: dtype) -> tuple[float, float]:
    """Return the least and the greatest value of a real or bool `dtype`."""
    if dtype.is_floating_point:
        return -torch.inf, torch.inf
    if dtype == torch.bool:
        return False, True
    return torch.iinfo(dtype).min, torch.iinfo(dtype).max
