"""Metrics as users write them, on top of TorchMetrics."""

from __future__ import annotations

from typing import Any

import torch
import torchmetrics
from torch import Tensor
from torchmetrics.aggregation import BaseAggregator, MeanMetric, SumMetric


class Unchecked(MeanMetric):
    """A mean whose check is overridden, as users do it."""

    def _cast_and_nan_check_input(self, x: Any, weight: Any = None) -> tuple[Tensor, Tensor]:
        if weight is None:
            weight = torch.ones_like(x)
        return x.to(self.dtype), weight.to(self.dtype)


class Weighted(MeanMetric):
    """A mean whose update is written out, with a default weight that is a number."""

    def update(self, value: Any, weight: Any = 1.0) -> None:
        if not isinstance(value, Tensor):
            value = torch.as_tensor(value, dtype=self.dtype, device=self.device)
        if not isinstance(weight, Tensor):
            weight = torch.as_tensor(weight, dtype=self.dtype, device=self.device)
        value, weight = self._cast_and_nan_check_input(value, torch.broadcast_to(weight, value.shape))
        self.mean_value += (value * weight).sum()
        self.weight += weight.sum()


class Doubled(SumMetric):
    """A sum that calls the one it inherits from."""

    def update(self, value: Any) -> None:
        super().update(value)
        super().update(value)


class Product(BaseAggregator):
    """An aggregator of another kind: what would stand in for a nan is not known."""

    def __init__(self, **options: Any) -> None:
        super().__init__("sum", torch.tensor(1.0), state_name="product", **options)

    def update(self, value: Any) -> None:
        value, _ = self._cast_and_nan_check_input(value)
        self.product = self.product * value.prod()


class Own(torchmetrics.Metric):
    """A metric that owes nothing to those of the library."""

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros(2), "sum")
        self.add_state("rows", [], "cat")

    def update(self, value: Tensor) -> None:
        self.total = self.total + value.sum(0)
        self.rows.append(value)

    def compute(self) -> Tensor:
        return self.total.sum() + torchmetrics.utilities.data.dim_zero_cat(self.rows).sum()


class Careful(MeanMetric):
    """A mean that looks for `nan` itself."""

    def update(self, value: Any, weight: Any = 1.0) -> None:
        if torch.isnan(value).any():
            return
        super().update(value, weight)
