"""Deviances of Tweedie distributions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.metric import Metric
from gapless.metrics.regression.errors import float_pair
from gapless.metrics.statistic import Slot, Statistic


class Deviance(Statistic):
    """The sum of deviances. Pairs outside the distribution's domain are counted and left out."""

    def __init__(self, power: float) -> None:
        self.power = power
        slots, strange = {"sum": Slot((), torch.float64), "seen": Slot()}, {"strange": Slot()}
        super().__init__((power,), {**slots, **strange} if power else slots, checked=power != 0)

    def count(self, batch: Batch) -> None:
        preds, target = batch.derive(float_pair)
        if self.power == 0:
            deviance, strange = (target - preds).square(), None
        else:
            strange = self.outside_domain(preds, target)
            deviance = self.deviance(preds.masked_fill(strange, 1.0), target.masked_fill(strange, 1.0))
        total, number_seen = self.state["sum"], self.state["seen"]
        total.add_(deviance.sum(dtype=total.dtype))
        number_seen.add_(deviance.numel())
        if strange is not None:
            number = strange.sum()
            number_seen.sub_(number)
            self.state["strange"].add_(number)

    def outside_domain(self, preds: Tensor, target: Tensor) -> Tensor:
        """Return where predictions or targets are outside the distribution's domain."""
        if self.power < 0:
            return preds <= 0
        return (preds <= 0) | (target < 0 if 1 <= self.power < 2 else target <= 0)

    def deviance(self, preds: Tensor, target: Tensor) -> Tensor:
        """Return the deviance of each pair; 0 if both are 1."""
        power = self.power
        if power == 1:
            return 2 * (torch.xlogy(target, target / preds) + preds - target)
        if power == 2:
            return 2 * ((preds / target).log() + target / preds - 1)
        own = target.clamp(min=0).pow(2 - power) / ((1 - power) * (2 - power))
        both = target * preds.pow(1 - power) / (1 - power)
        return 2 * (own - both + preds.pow(2 - power) / (2 - power))

    def complaint(self, count: int) -> str:
        words = "`preds` has to be positive"
        if self.power >= 1:
            words += " and `targets` not negative" if self.power < 2 else ", and `targets` too"
        return f"Left out {count} pair{'s' * (count != 1)}: for power={self.power}, {words}"


class TweedieDevianceScore(Metric):
    """The mean deviance of a Tweedie distribution.

    Args:
        power: exponent of the variance's growth with the mean: 0 for the normal distribution (the squared
            error), 1 for Poisson, 2 for gamma, 3 for inverse Gaussian.
    """

    torchmetrics_file = "tweedie_deviance"
    torchmetrics_slots = (("sum_deviance_score", "sum"), ("num_observations", "seen", "int64"))
    plot_lower_bound = 0.0
    is_differentiable = True
    deviance: Deviance

    def __init__(self, power: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if 0 < power < 1:
            raise ValueError(f"Deviance Score is not defined for power={power}.")
        self.power = power
        self.use("deviance", Deviance(power))

    def update(self, preds: Tensor, targets: Tensor) -> None:
        """Add a batch of predictions and targets of the same shape."""
        self.observe(preds, targets)

    def value(self) -> Tensor:
        return (self.deviance.state["sum"] / self.deviance.state["seen"]).to(self.dtype)
