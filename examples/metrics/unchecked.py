"""The mean of step 2 and after: TorchMetrics' own, without the check that waits."""

from __future__ import annotations

from torch import Tensor
from torchmetrics import MeanMetric


class UncheckedMean(MeanMetric):
    """`MeanMetric` that does not look for NaN; a NaN shows in the result instead.

    ``MeanMetric(nan_strategy="disable")`` would not look either, but TorchMetrics 1.9 drops the weights then.
    """

    def _cast_and_nan_check_input(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return x.to(self.dtype), weight.to(self.dtype)
