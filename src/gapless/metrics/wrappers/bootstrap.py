"""Bootstrap estimates of the spread of a metric."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics.metric import Metric
from gapless.metrics.wrappers.transparent import MetricCopies, check_metric


class BootStrapper(MetricCopies):
    """Estimates the spread of a metric over samples drawn with replacement from its batches.

    Each of `num_bootstraps` copies gets every batch with rows resampled on the device. ``"poisson"`` and
    ``"multinomial"`` both draw as many rows as there are, so that no size depends on the draw.

    Args:
        base_metric: the metric.
        num_bootstraps: how many copies.
        mean, std, quantile, raw: which of them to return, by these names.
        sampling_strategy: ``"poisson"`` or ``"multinomial"``.
    """

    torchmetrics_file = "bootstrapping"

    def __init__(
        self,
        base_metric: Metric,
        num_bootstraps: int = 10,
        mean: bool = True,
        std: bool = True,
        quantile: float | Tensor | None = None,
        raw: bool = False,
        sampling_strategy: str = "poisson",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        base_metric = check_metric(base_metric, "base metric")
        if sampling_strategy not in ("poisson", "multinomial"):
            raise ValueError(
                "Expected argument ``sampling_strategy`` to be one of ('poisson', 'multinomial')"
                f" but received {sampling_strategy}"
            )
        self._make_copies(base_metric, num_bootstraps)
        self.num_bootstraps = num_bootstraps
        self.mean, self.std, self.quantile, self.raw = mean, std, quantile, raw
        self.sampling_strategy = sampling_strategy

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch; tensors are resampled along their first dimension."""
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if not tensors:
            raise ValueError("None of the input contained tensors, so could not determine the sampling size")
        for metric in self._wrapped_metrics():
            rows = torch.randint(len(tensors[0]), (len(tensors[0]),), device=tensors[0].device)
            metric.update(
                *(value.index_select(0, rows) if isinstance(value, Tensor) else value for value in args),
                **{n: v.index_select(0, rows) if isinstance(v, Tensor) else v for n, v in kwargs.items()},
            )
        self.record_update()

    def value(self) -> dict[str, Tensor]:
        values = torch.stack([metric._result() for metric in self._wrapped_metrics()])
        results: dict[str, Tensor] = {}
        if self.mean:
            results["mean"] = values.mean(0)
        if self.std:
            results["std"] = values.std(0)
        if self.quantile is not None:
            results["quantile"] = torch.quantile(values, self.quantile)
        if self.raw:
            results["raw"] = values
        return results
