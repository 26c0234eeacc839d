"""The spread of a metric over samples drawn anew."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics.metric import Metric
from gapless.metrics.wrappers.transparent import Copies, check_metric


class BootStrapper(Copies):
    """The spread of a metric over samples drawn with replacement from what it was given.

    Each of `num_bootstraps` copies sees every batch with its rows drawn anew, on the device; ``"poisson"``
    and ``"multinomial"`` both draw as many rows as there are, so that no size depends on the draw.

    Args:
        base_metric: the metric.
        num_bootstraps: how many copies.
        mean, std, quantile, raw: which of them to give, by these names.
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
        self._copy(base_metric, num_bootstraps)
        self.num_bootstraps = num_bootstraps
        self.mean, self.std, self.quantile, self.raw = mean, std, quantile, raw
        self.sampling_strategy = sampling_strategy

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch; tensors are drawn from along their first dimension."""
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if not given:
            raise ValueError("None of the input contained tensors, so could not determine the sampling size")
        for metric in self._several():
            rows = torch.randint(len(given[0]), (len(given[0]),), device=given[0].device)
            metric.update(
                *(value.index_select(0, rows) if isinstance(value, Tensor) else value for value in args),
                **{n: v.index_select(0, rows) if isinstance(v, Tensor) else v for n, v in kwargs.items()},
            )
        self._ledger.updated_once(torch.compiler.is_compiling())

    def value(self) -> dict[str, Tensor]:
        values = torch.stack([metric._result() for metric in self._several()])
        found: dict[str, Tensor] = {}
        if self.mean:
            found["mean"] = values.mean(0)
        if self.std:
            found["std"] = values.std(0)
        if self.quantile is not None:
            found["quantile"] = torch.quantile(values, self.quantile)
        if self.raw:
            found["raw"] = values
        return found
