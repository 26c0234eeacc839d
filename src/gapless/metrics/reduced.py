"""Statistics of values that are reduced to a sum or a mean, or all kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.rows import Column, Rows
from gapless.metrics.statistic import Slot, Statistic

UNREDUCED = ("none", None)
"""Reductions that keep every value."""
Measure = Callable[..., Tensor]
"""Computes values from a batch and a configuration, in float32 or wider."""


class Sum(Statistic):
    """The sum of values over all elements, or over rows for each of several outputs, and their number.

    `measure` is called with the batch and `config`.
    """

    def __init__(self, measure: Measure, config: tuple[Any, ...] = (), outputs: int = 1) -> None:
        self.measure = measure
        self.config = config
        self.outputs = outputs
        slots = {"sum": Slot(() if outputs == 1 else (outputs,), torch.float64), "seen": Slot()}
        super().__init__((measure, outputs, config), slots, checked=False)

    def count(self, batch: Batch) -> None:
        values, total = batch.derive(self.measure, *self.config), self.state["sum"]
        if self.outputs == 1:
            total.add_(values.sum(dtype=total.dtype))
            self.state["seen"].add_(values.numel())
        else:
            total.add_(values.sum(0, dtype=total.dtype))
            self.state["seen"].add_(values.shape[0])

    def reduced(self, reduction: str | None = "mean") -> Tensor:
        """Return the mean, or the sum if `reduction` says so."""
        total = self.state["sum"]
        return total.clone() if reduction == "sum" else total / self.state["seen"]


class Every(Rows):
    """Every value, ``(N,)``, in order.

    `column` is the name of the column that holds them, and its shape and dtype if known.
    """

    def __init__(
        self,
        measure: Measure,
        config: tuple[Any, ...] = (),
        capacity: int | None = None,
        column: tuple[str, Column | None] = ("value", None),
    ) -> None:
        self.measure = measure
        self.config = config
        self.name = column[0]
        super().__init__((measure, config), dict([column]), capacity, checked=capacity is not None)

    def count(self, batch: Batch) -> None:
        self.append(**{self.name: batch.derive(self.measure, *self.config)})

    def reduced(self, reduction: str | None = None) -> Tensor:
        """Return every value, or their sum or mean."""
        self.require_rows()
        values = self.valid_rows(self.name)
        if reduction in UNREDUCED:
            return values.clone()
        return values.sum() if reduction == "sum" else values.mean()
