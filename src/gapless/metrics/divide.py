"""Divisions with a fallback for a divisor of zero, without reading a value."""

from __future__ import annotations

import torch
from torch import Tensor


def divide(over: Tensor, under: Tensor, otherwise: float = 0.0) -> Tensor:
    """Return ``over / under`` in floating point, with `otherwise` where `under` is 0."""
    over = over if over.is_floating_point() else over.float()
    under = under if under.is_floating_point() else under.float()
    return (over / under).masked_fill_(under == 0, otherwise)


def share(over: Tensor, under: Tensor, otherwise: float = 0.0) -> Tensor:
    """Like :func:`divide`, with fewer operations: `over` must be 0 wherever `under` is, and not negative."""
    if not under.is_floating_point() and torch.get_default_dtype() != torch.float32:
        over, under = over.float(), under.float()
    return (over / under).nan_to_num_(otherwise)
