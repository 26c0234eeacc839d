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
from gapless.metrics.tasks import Task


class AccuracyScore(Score):
    """Right predictions among all; for a class, among those of that class."""

    counts_top_k = True

    def ratio(self, counts: Counts) -> Ratio:
        if self.task == "multiclass":
            return counts.tp, counts.tp + counts.fn
        right = counts.tp + counts.tn
        return right, right + counts.fp + counts.fn


class BinaryAccuracy(AccuracyScore, BinaryScore):
    __doc__ = f"Accuracy. {BinaryScore.__doc__}"


class MulticlassAccuracy(AccuracyScore, MulticlassScore):
    __doc__ = f"Accuracy. {MulticlassScore.__doc__}"


class MultilabelAccuracy(AccuracyScore, MultilabelScore):
    __doc__ = f"Accuracy. {MultilabelScore.__doc__}"


class Accuracy(Task):
    """Accuracy of a task."""

    forms: ClassVar = {
        "binary": BinaryAccuracy,
        "multiclass": MulticlassAccuracy,
        "multilabel": MultilabelAccuracy,
    }
    arguments: ClassVar = TASK_PARAMETERS
