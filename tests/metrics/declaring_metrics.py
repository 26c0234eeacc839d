"""Metrics as one writes them for TorchMetrics: with ``add_state``, ``update`` and ``compute``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, tensor

from gapless.metrics import Metric


class Total(Metric):
    """A sum; says nothing of whether updates depend on the state."""

    calls = 0

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_state("total", tensor(0.0), dist_reduce_fx="sum")

    def update(self, value: Any) -> None:
        self.calls += 1
        self.total = self.total + value

    def compute(self) -> Tensor:
        return self.total


class Mergeable(Total):
    """The same, of which batches may be added up."""

    full_state_update = False


class Kept(Metric):
    """Every value, in a list."""

    full_state_update = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_state("rows", [], dist_reduce_fx="cat")

    def update(self, rows: Tensor) -> None:
        self.rows.append(rows.reshape(-1))

    def compute(self) -> Tensor:
        rows = self.rows if isinstance(self.rows, Tensor) else torch.cat([*self.rows, torch.zeros(0)])
        return rows.sort().values


class Kinds(Metric):
    """One state of each kind of reduction."""

    full_state_update = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_state("count", tensor(0), "sum")
        self.add_state("mean", tensor(0.0), "mean")
        self.add_state("high", tensor(-torch.inf), "max")
        self.add_state("low", tensor(torch.inf), "min")
        self.add_state("product", torch.ones(1), lambda states: states.prod(0))

    def update(self, value: float) -> None:
        self.count += 1
        self.mean += value
        self.high = self.high.clamp(min=value)
        self.low = self.low.clamp(max=value)
        self.product = self.product * value

    def compute(self) -> list[Tensor]:
        return [self.count, self.mean, self.high, self.low, self.product]


class Stacked(Metric):
    """A state that comes from several processes as one for each."""

    full_state_update = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_state("each", torch.zeros(3), None)

    def update(self, value: Any) -> None:
        self.each += value

    def compute(self) -> Tensor:
        return self.each.reshape(-1, 3).sum(1).sort().values
