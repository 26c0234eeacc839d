"""TorchMetrics' wrappers that compare values on the host, without the comparison."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics.wrappers import MinMaxMetric

from gapless.metrics.torchmetrics._constants import fill

MINMAX_NOTE = "the minimum and the maximum are chosen on the GPU"


def _on_same_device(bound: Tensor, value: Tensor) -> Tensor:
    """Return `bound`, 0-dim, on the device of `value`: the first bounds are created on the host."""
    if bound.device.type == "cpu" and value.device.type != "cpu":
        return fill(bound.item(), value.device, bound.dtype)
    return bound.to(value.device)


class UnwaitedMinMax(MinMaxMetric):
    """`MinMaxMetric` that does not compare on the host."""

    def compute(self) -> dict[str, Tensor]:
        value = self._base_metric.compute()
        if not isinstance(value, Tensor) or value.numel() != 1:
            return super().compute()
        greatest, least = _on_same_device(self.max_val, value), _on_same_device(self.min_val, value)
        self.max_val = torch.where(greatest < value, value, greatest)
        self.min_val = torch.where(least > value, value, least)
        return {"raw": value, "max": self.max_val, "min": self.min_val}
