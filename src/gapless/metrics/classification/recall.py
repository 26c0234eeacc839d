"""The share of positives that are found."""

from __future__ import annotations

from typing import ClassVar

from gapless.metrics.classification.base import (
    TASK_PARAMETERS,
    BinaryScore,
    MulticlassScore,
    MultilabelScore,
    Ratio,
    Score,
)
from gapless.metrics.classification.counts import Counts
from gapless.metrics.tasks import Task, by_task


class RecallScore(Score):
    """The share of positives that are found."""

    torchmetrics_file: ClassVar[str | None] = "precision_recall"
    counts_top_k = True

    def ratio(self, counts: Counts) -> Ratio:
        return counts.tp, counts.actual


class BinaryRecall(RecallScore, BinaryScore):
    """The share of positives that are found."""


class MulticlassRecall(RecallScore, MulticlassScore):
    """The share of positives that are found."""


class MultilabelRecall(RecallScore, MultilabelScore):
    """The share of positives that are found."""


class Recall(Task):
    """The share of positives that are found."""

    forms: ClassVar = by_task(BinaryRecall, MulticlassRecall, MultilabelRecall)
    arguments: ClassVar = TASK_PARAMETERS
