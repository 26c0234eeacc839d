"""TorchMetrics' wrappers that look at their values themselves, without the look."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics.wrappers import MinMaxMetric

from gapless.metrics.torchmetrics._constants import fill

KEEPS = "the minimum and the maximum are chosen on the GPU"


def _beside(bound: Tensor, value: Tensor) -> Tensor:
    """`bound`, 0-dim, on the device of `value`: the first bounds are made on the host."""
    if bound.device.type == "cpu" and value.device.type != "cpu":
        return fill(bound.item(), value.device, bound.dtype)
    return bound.to(value.device)


class UnwaitedMinMax(MinMaxMetric):
    """`MinMaxMetric` that does not compare on the host."""

    def compute(self) -> dict[str, Tensor]:
        value = self._base_metric.compute()
        if not isinstance(value, Tensor) or value.numel() != 1:
            return super().compute()
        greatest, least = _beside(self.max_val, value), _beside(self.min_val, value)
        self.max_val = torch.where(greatest < value, value, greatest)
        self.min_val = torch.where(least > value, value, least)
        return {"raw": value, "max": self.max_val, "min": self.min_val}
