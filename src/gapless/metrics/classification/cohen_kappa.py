"""Cohen's kappa: agreement beyond chance."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.classification.confusion import BinaryConfusion, Confusion, MulticlassConfusion
from gapless.metrics.tasks import Task


class Kappa(Confusion, abstract=True):
    """Cohen's kappa.

    Args:
        weights: how disagreements are weighted: all the same (None or ``"none"``), by the distance between
            the classes (``"linear"``), or by its square (``"quadratic"``).
    """

    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    weights: str | None = None

    def score(self, matrix: Tensor) -> Tensor:
        counts = matrix.float()
        rows, columns = counts.sum(1, keepdim=True), counts.sum(0, keepdim=True)
        expected = rows * columns / columns.sum()
        index = torch.arange(len(counts), device=counts.device, dtype=counts.dtype)
        distance = (index[:, None] - index).abs()
        if self.weights == "quadratic":
            distance = distance**2
        elif self.weights != "linear":
            distance = distance.clamp(max=1)
        return 1 - (distance * counts).sum() / (distance * expected).sum()

    def _set_weights(self, weights: str | None, validate_args: bool) -> None:
        if validate_args:
            checks.check_one_of("weight", weights, ("linear", "quadratic", "none", None), stop=".")
        self.weights = weights


class BinaryCohenKappa(Kappa, BinaryConfusion):
    """Cohen's kappa."""

    def __init__(
        self,
        threshold: float = 0.5,
        ignore_index: int | None = None,
        weights: str | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(threshold, ignore_index, validate_args, **kwargs)
        self._set_weights(weights, validate_args)


class MulticlassCohenKappa(Kappa, MulticlassConfusion):
    """Cohen's kappa."""

    def __init__(
        self,
        num_classes: int,
        ignore_index: int | None = None,
        weights: str | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_classes, ignore_index, validate_args, **kwargs)
        self._set_weights(weights, validate_args)


class CohenKappa(Task):
    """Cohen's kappa of a task."""
