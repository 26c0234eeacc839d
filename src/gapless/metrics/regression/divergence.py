"""Divergences between distributions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.metric import Metric
from gapless.metrics.reduced import UNREDUCED, Every, Sum
from gapless.metrics.regression.errors import float_pair

REDUCTIONS = ("mean", "sum", "none", None)
"""In the order of TorchMetrics' error message."""


def log_ratio(p: Tensor, q: Tensor, logarithms: bool) -> Tensor:
    """Return the mean of ``log(p / q)`` under `p` for each row, ``(N,)``."""
    if logarithms:
        return (p.exp() * (p - q)).sum(-1)
    return (p * (p / q).log()).masked_fill(p == 0, 0.0).sum(-1)


def distributions(batch: Batch, logarithms: bool) -> tuple[Tensor, Tensor]:
    """Return both distributions, with rows that sum to 1; raise ValueError unless they are 2-dim."""
    p, q = batch.derive(float_pair)
    if p.dim() != 2 or q.dim() != 2:
        raise ValueError(
            f"Expected both p and q distribution to be 2D but got {p.dim()} and {q.dim()} respectively"
        )
    return (p, q) if logarithms else (p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True))


def kullback_leibler(batch: Batch, logarithms: bool) -> Tensor:
    """Return the divergence of the second distribution of each row from the first, ``(N,)``."""
    p, q = batch.derive(distributions, logarithms)
    return log_ratio(p, q, logarithms)


def jensen_shannon(batch: Batch, logarithms: bool) -> Tensor:
    """Return the mean divergence of each row's two distributions from their mean, ``(N,)``."""
    p, q = batch.derive(distributions, logarithms)
    mean = torch.logaddexp(p, q) - math.log(2.0) if logarithms else (p + q) / 2
    return 0.5 * log_ratio(p, mean, logarithms) + 0.5 * log_ratio(q, mean, logarithms)


class Divergence(Metric, abstract=True):
    """The divergence between two distributions, row by row.

    Args:
        log_prob: whether arguments are log-probabilities; otherwise rows are normalized to sum to 1.
        reduction: ``"mean"`` or ``"sum"`` over rows, or ``"none"`` or None for a value per row.
        capacity: for a value per row, the fixed number of rows to store.
    """

    plot_lower_bound = 0.0
    is_differentiable = True
    higher_is_better = False
    more_arguments = ("capacity",)
    measure: Any
    divergences: Sum | Every

    def __init__(self, log_prob: bool = False, reduction: str | None = "mean", **kwargs: Any) -> None:
        capacity = kwargs.pop("capacity", None)
        super().__init__(**kwargs)
        if not isinstance(log_prob, bool):
            raise TypeError(f"Expected argument `log_prob` to be bool but got {log_prob}")
        checks.check_one_of("reduction", reduction, REDUCTIONS, comma="", listed=str(list(REDUCTIONS)))
        self.log_prob = log_prob
        self.reduction = reduction
        measure = type(self).measure
        every = Every(measure, (log_prob,), capacity) if reduction in UNREDUCED else None
        self.use("divergences", every or Sum(measure, (log_prob,)))

    def update(self, p: Tensor, q: Tensor) -> None:
        """Add rows of two distributions, ``(N, d)`` each."""
        self.observe(p, q)

    def value(self) -> Tensor:
        return self.divergences.reduced(self.reduction).to(self.dtype)


class KLDivergence(Divergence):
    """The Kullback–Leibler divergence of `q` from `p`."""

    torchmetrics_file = "kl_divergence"
    torchmetrics_slots = (("measures", "sum"), ("total", "seen", "int64"))
    measure = staticmethod(kullback_leibler)


class JensenShannonDivergence(Divergence):
    """The Jensen–Shannon divergence: the mean of those of `p` and `q` from their mean."""

    torchmetrics_file = "js_divergence"
    torchmetrics_slots = (("measures", "sum"), ("total", "seen", "int64"))
    plot_upper_bound = math.log(2.0)
    measure = staticmethod(jensen_shannon)
