"""Statistics of values that are reduced to a sum or a mean, or all kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.breadth import Breadth
from gapless.metrics.rows import Column, Rows
from gapless.metrics.statistic import Slot, Statistic

UNREDUCED = ("none", None)
"""Reductions that keep every value."""
Measure = Callable[..., Tensor]
"""Computes values from a batch and a configuration, in float32 or wider."""


class Sum(Statistic):
    """The sum of values, and how many they are.

    Args:
        measure: called as ``measure(batch, *config)`` in each update; returns the values to add, a tensor of
            any shape, or ``(N, outputs)`` for several outputs. It must not wait: nothing may be read on the
            host.
        config: hashable arguments of `measure`. Sums of the same function and `config` are shared in a
            collection, so that `measure` should be no lambda and no bound method.
        outputs: the number of sums; for more than 1, rows are added up for each.

    >>> def error(batch, order):
    ...     preds, target = batch.args
    ...     return (preds - target).abs() ** order
    >>> total = Sum(error, (2,))
    >>> total.count(Batch((torch.tensor([1.0, 2.0]), torch.tensor([1.0, 5.0])), total.device))
    >>> total.reduced(), total.reduced("sum")
    (tensor(4.5000, dtype=torch.float64), tensor(9., dtype=torch.float64))
    """

    def __init__(self, measure: Measure, config: tuple[Any, ...] = (), outputs: int = 1) -> None:
        self.measure = measure
        self.config = config
        self.outputs = outputs
        self.breadth = Breadth("output", outputs)
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
        """Return the mean, NaN without values, or the sum if `reduction` is ``"sum"``.

        It is of float64 (float32 where the device has no float64), ``()`` or ``(outputs,)``.
        """
        total = self.state["sum"]
        return total.clone() if reduction == "sum" else total / self.state["seen"]


class Every(Rows):
    """Every value, ``(N,)``, in order.

    Args:
        measure: called as ``measure(batch, *config)`` in each update; returns the values to keep, ``(n,)``.
        config: hashable arguments of `measure`.
        capacity: the maximum number of values, kept in storage of that size; values beyond it are left out
            and reported. None for storage that grows, which updates in a CUDA graph refuse with a
            RuntimeError.
        column: the name of the column that holds the values, and its shape and dtype if known.

    >>> def first(batch):
    ...     return batch.args[0]
    >>> kept = Every(first)
    >>> kept.count(Batch((torch.tensor([3.0, 1.0]),), kept.device))
    >>> kept.reduced(), kept.reduced("mean")
    (tensor([3., 1.]), tensor(2.))
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
