"""The counts themselves: true and false positives and negatives, and support."""

from __future__ import annotations

import torch
from torch import Tensor

from gapless.metrics.classification.count_metrics import (
    BinaryScore,
    CountMetric,
    MulticlassScore,
    MultilabelScore,
    ScoreTask,
)
from gapless.metrics.classification.counts import OutcomeCounts


class StatScore(CountMetric, abstract=True):
    """``[..., 5]``: true positives, false positives, true negatives, false negatives, support."""

    plot_lower_bound: float | None = None
    plot_upper_bound: float | None = None
    plot_legend_name: str | None = None
    higher_is_better: bool | None = None

    def score(self, counts: OutcomeCounts) -> Tensor:
        table = torch.stack((*counts, counts.tp + counts.fn), dim=-1)
        if self.average in ("binary", "none", None) or self.flat:
            return table
        if self.average == "micro":
            return table.sum(-2)
        if self.average == "macro":
            return table.float().mean(-2)
        support = counts.tp + counts.fn
        whole = support.sum() if self.task == "multilabel" else support.sum(-1, keepdim=True)
        return (table * (support / whole).unsqueeze(-1)).sum(-2)


class BinaryStatScores(StatScore, BinaryScore):
    """True and false positives and negatives, and support."""


class MulticlassStatScores(StatScore, MulticlassScore):
    """True and false positives and negatives, and support."""


class MultilabelStatScores(StatScore, MultilabelScore):
    """True and false positives and negatives, and support."""


class StatScores(ScoreTask):
    """True and false positives and negatives, and support, of a task."""
