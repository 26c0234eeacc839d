"""How far distributions are from each other."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.metric import Metric
from gapless.metrics.reduced import EVERY, Every, Sum
from gapless.metrics.regression.errors import pair

REDUCTIONS = ("mean", "sum", "none", None)


def log_ratio(p: Tensor, q: Tensor, logarithms: bool) -> Tensor:
    """``(N,)``: the mean of the logarithm of ``p / q`` under `p`, for each row."""
    if logarithms:
        return (p.exp() * (p - q)).sum(-1)
    return (p * (p / q).log()).masked_fill(p == 0, 0.0).sum(-1)


def distributions(batch: Batch, logarithms: bool) -> tuple[Tensor, Tensor]:
    """Both, with rows that add up to 1; raises ValueError unless they are tables."""
    p, q = batch.derive(pair)
    if p.dim() != 2 or q.dim() != 2:
        raise ValueError(
            f"Expected both p and q distribution to be 2D but got {p.dim()} and {q.dim()} respectively"
        )
    return (p, q) if logarithms else (p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True))


def kullback_leibler(batch: Batch, logarithms: bool) -> Tensor:
    """The divergence of the second distribution of a row from the first."""
    p, q = batch.derive(distributions, logarithms)
    return log_ratio(p, q, logarithms)


def jensen_shannon(batch: Batch, logarithms: bool) -> Tensor:
    """The mean divergence of the mean of a row's two distributions from each."""
    p, q = batch.derive(distributions, logarithms)
    mean = torch.logaddexp(p, q) - math.log(2.0) if logarithms else (p + q) / 2
    return 0.5 * log_ratio(p, mean, logarithms) + 0.5 * log_ratio(q, mean, logarithms)


class Divergence(Metric, abstract=True):
    """How far two distributions are from each other, row by row.

    Args:
        log_prob: whether the logarithms of probabilities are given; else rows are made to add up to 1.
        reduction: ``"mean"`` or ``"sum"`` over rows, or ``"none"`` or None for a value per row.
        capacity: for a value per row, the number of rows there is room for, in fixed storage.
    """

    plot_lower_bound = 0.0
    is_differentiable = True
    higher_is_better = False
    beyond = "capacity"
    measure: Any
    divergences: Sum | Every

    def __init__(self, log_prob: bool = False, reduction: str | None = "mean", **kwargs: Any) -> None:
        capacity = kwargs.pop("capacity", None)
        super().__init__(**kwargs)
        if not isinstance(log_prob, bool):
            raise TypeError(f"Expected argument `log_prob` to be bool but got {log_prob}")
        checks.one_of("reduction", reduction, REDUCTIONS, comma="", listed=str(list(REDUCTIONS)))
        self.log_prob = log_prob
        self.reduction = reduction
        measure = type(self).measure
        every = Every(measure, (log_prob,), capacity) if reduction in EVERY else None
        self.use("divergences", every or Sum(measure, (log_prob,)))

    def update(self, p: Tensor, q: Tensor) -> None:
        """Add rows of two distributions, ``(N, d)`` each."""
        self.observe(p, q)

    def value(self) -> Tensor:
        return self.divergences.reduced(self.reduction).to(self.dtype)


class KLDivergence(Divergence):
    """Kullback and Leibler's divergence of `q` from `p`."""

    torchmetrics_file = "kl_divergence"
    torchmetrics_slots = "measures:f=sum total:i=seen"
    measure = staticmethod(kullback_leibler)


class JensenShannonDivergence(Divergence):
    """Jensen and Shannon's divergence: the mean of those of `p` and `q` to their mean."""

    torchmetrics_file = "js_divergence"
    torchmetrics_slots = "measures:f=sum total:i=seen"
    plot_upper_bound = math.log(2.0)
    measure = staticmethod(jensen_shannon)
