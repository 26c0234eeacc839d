"""The share of predictions that are right."""

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


class AccuracyScore(Score):
    """Right predictions among all; for a class, among those of that class."""

    counts_top_k = True

    def ratio(self, counts: Counts) -> Ratio:
        if self.task == "multiclass":
            return counts.tp, counts.actual
        right = counts.tp + counts.tn
        return right, right + counts.fp + counts.fn


class BinaryAccuracy(AccuracyScore, BinaryScore):
    """Accuracy."""


class MulticlassAccuracy(AccuracyScore, MulticlassScore):
    """Accuracy."""


class MultilabelAccuracy(AccuracyScore, MultilabelScore):
    """Accuracy."""


class Accuracy(Task):
    """Accuracy of a task."""

    forms: ClassVar = by_task(BinaryAccuracy, MulticlassAccuracy, MultilabelAccuracy)
    arguments: ClassVar = TASK_PARAMETERS
