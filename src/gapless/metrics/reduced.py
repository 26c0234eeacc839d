"""Values of which the mean, the sum, or every one is asked for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.rows import Rows
from gapless.metrics.statistic import Slot, Statistic

EVERY = ("none", None)
"""Reductions that leave every value."""


class Measured:
    """How a batch becomes values ``(N,)``: what the statistics below have in common."""

    def measure(self, batch: Batch) -> Tensor:
        """The values of `batch`, in a floating-point type of 32 bits or more."""
        raise NotImplementedError


class Sum(Measured, Statistic):
    """The sum of the values, and how many there were."""

    def __init__(self, config: tuple[Any, ...], checked: bool = False) -> None:
        slots = {"sum": Slot((), torch.float64), "seen": Slot()}
        super().__init__(config, {**slots, "strange": Slot()} if checked else slots, checked)

    def count(self, batch: Batch) -> None:
        values, total = self.measure(batch), self.state["sum"]
        total.add_(values.sum(dtype=total.dtype))
        self.state["seen"].add_(values.numel())

    def reduced(self, reduction: str | None) -> Tensor:
        """The mean, or the sum where `reduction` says so."""
        total = self.state["sum"]
        return total.clone() if reduction == "sum" else total / self.state["seen"]


class Every(Measured, Rows):
    """Every value, in order."""

    def __init__(self, config: tuple[Any, ...], capacity: int | None = None) -> None:
        super().__init__(config, {"value": None}, capacity, checked=capacity is not None)

    def count(self, batch: Batch) -> None:
        self.append(value=self.measure(batch))

    def reduced(self, reduction: str | None) -> Tensor:
        """Every value, or what `reduction` makes of them."""
        self.rows_needed()
        values = self.known("value")
        if reduction in EVERY:
            return values.clone()
        return values.sum() if reduction == "sum" else values.mean()
