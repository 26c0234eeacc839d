"""Quotients whose divisor may be zero, and averages over classes; nothing here reads a value."""

from __future__ import annotations

import torch
from torch import Tensor


def divide(over: Tensor, under: Tensor, otherwise: float = 0.0) -> Tensor:
    """``over / under`` in floating point, and `otherwise` where `under` is 0."""
    over = over if over.is_floating_point() else over.float()
    under = under if under.is_floating_point() else under.float()
    return (over / under).masked_fill_(under == 0, otherwise)


def share(over: Tensor, under: Tensor, otherwise: float = 0.0) -> Tensor:
    """The same where `over`, which is not negative, is 0 wherever `under` is: fewer operations."""
    if not under.is_floating_point() and torch.get_default_dtype() != torch.float32:
        over, under = over.float(), under.float()
    return (over / under).nan_to_num_(otherwise)
