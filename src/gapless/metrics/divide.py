"""Quotients whose divisor may be zero, and averages over classes; nothing here reads a value."""

from __future__ import annotations

import torch
from torch import Tensor


def divide(over: Tensor, under: Tensor, otherwise: float = 0.0) -> Tensor:
    """``over / under`` in floating point, and `otherwise` where `under` is 0."""
    over = over if over.is_floating_point() else over.float()
    under = under if under.is_floating_point() else under.float()
    return (over / under).masked_fill_(under == 0, otherwise)


def averaged(score: Tensor, average: str | None, support: Tensor, present: Tensor | None) -> Tensor:
    """The average over the last dimension, by `average`: ``"macro"``, ``"weighted"``, or ``"none"`` for none.

    `present` says which classes there are at all; None takes all of them into a macro average.
    """
    if average is None or average == "none":
        return score
    if average == "weighted":
        weights = support.to(score.dtype)
    else:
        weights = torch.ones_like(score) if present is None else present.to(score.dtype)
    return divide(weights * score, weights.sum(-1, keepdim=True)).sum(-1)
