"""Scores of ensemble forecasts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.metric import Metric
from gapless.metrics.reduced import Sum
from gapless.metrics.regression.errors import to_wide_float


def ranked_probability(batch: Batch) -> Tensor:
    """Return the continuous ranked probability score of each forecast, ``(N,)``."""
    preds, target = batch.args
    if preds.dim() != 2 or preds.shape[:1] != target.shape:
        raise RuntimeError(
            "Predictions and targets are expected to have the same shape but for the members, "
            f"but got {preds.shape} and {target.shape}."
        )
    members = preds.shape[1]
    if members < 2:
        raise ValueError(f"CRPS requires at least 2 ensemble members, but you provided {preds.shape}.")
    preds, target = to_wide_float(preds), to_wide_float(target)
    missed = (preds - target.unsqueeze(1)).abs().mean(1)
    # In sorted order, a member is the larger one of as many pairs as there are members before it.
    weights = torch.arange(1 - members, members, 2, device=preds.device)
    spread: Tensor = (preds.sort(1).values * weights).sum(1) / members**2
    return missed - spread


class ContinuousRankedProbabilityScore(Metric):
    """The mean continuous ranked probability score: the members' error less half their mean distance.

    Members are sorted, not compared in pairs, so memory is proportional to the forecasts.
    """

    torchmetrics_file = "crps"
    torchmetrics_slots = (("score", "sum", "row"), ("total", "seen", "row"))
    plot_lower_bound = 0.0
    is_differentiable = False
    higher_is_better = False
    scores: Sum

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.use("scores", Sum(ranked_probability))

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add forecasts ``(N, members)`` and observations ``(N,)``."""
        self.observe(preds, target)

    def value(self) -> Tensor:
        return self.scores.reduced().to(self.dtype)
