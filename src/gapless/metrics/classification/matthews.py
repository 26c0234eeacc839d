"""Matthews' correlation between target and predicted classes."""

from __future__ import annotations

import torch
from torch import Tensor

from gapless.metrics.classification.confusion import (
    BinaryConfusion,
    Confusion,
    MulticlassConfusion,
    MultilabelConfusion,
)
from gapless.metrics.tasks import Task


class Matthews(Confusion, abstract=True):
    """Matthews' correlation coefficient; a multilabel matrix is summed over the labels first."""

    torchmetrics_file = "matthews_corrcoef"
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    def score(self, matrix: Tensor) -> Tensor:
        counts = (matrix.sum(0) if matrix.dim() == 3 else matrix).double()
        actual, predicted = counts.sum(1), counts.sum(0)
        total = counts.sum()
        numerator = counts.trace() * total - (actual * predicted).sum()
        spread = (total**2 - (predicted**2).sum()) * (total**2 - (actual**2).sum())
        score = (numerator / spread.sqrt()).masked_fill(spread == 0, 0.0)
        return (score_with_limits(counts, score, spread) if counts.numel() == 4 else score).float()


def score_with_limits(counts: Tensor, score: Tensor, spread: Tensor) -> Tensor:
    """Return the score of a 2 by 2 matrix, with limits for empty rows or columns.

    All correct is 1, all wrong is -1. Otherwise a small number replaces the missing count, so that the sign
    says whether more predictions were correct or wrong.
    """
    tn, fp, fn, tp = counts.flatten().unbind()
    small = torch.finfo(torch.float32).eps
    root = small**0.5
    cases = [
        ((fn == 0) & (tn == 0), root * (tp - fp)),
        ((fp == 0) & (tn == 0), root * (tp - fn)),
        ((tp == 0) & (fn == 0), root * (tn - fp)),
        ((tp == 0) & (fp == 0), root * (tn - fn)),
        (tp == 0, tn - fp * fn),
        (tn == 0, tp - fp * fn),
        ((fp == 0) | (fn == 0), tp * tn),
    ]
    numerator = torch.zeros_like(score)
    for condition, value in reversed(cases):
        numerator = torch.where(condition, value, numerator)
    denominator = (tp + fp + small) * (tp + fn + small) * (tn + fp + small) * (tn + fn + small)
    score = torch.where(spread == 0, numerator / denominator.sqrt(), score)
    right, wrong = tp + tn, fp + fn
    score = score.masked_fill((right != 0) & (wrong == 0), 1.0)
    return score.masked_fill((right == 0) & (wrong != 0), -1.0)


class BinaryMatthewsCorrCoef(Matthews, BinaryConfusion):
    """Matthews' correlation coefficient."""


class MulticlassMatthewsCorrCoef(Matthews, MulticlassConfusion):
    """Matthews' correlation coefficient."""


class MultilabelMatthewsCorrCoef(Matthews, MultilabelConfusion):
    """Matthews' correlation coefficient."""


class MatthewsCorrCoef(Task):
    """Matthews' correlation coefficient of a task."""
