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
from gapless.metrics.tasks import Task


class RecallScore(Score):
    """The share of positives that are found."""

    counts_top_k = True

    def ratio(self, counts: Counts) -> Ratio:
        return counts.tp, counts.tp + counts.fn


class BinaryRecall(RecallScore, BinaryScore):
    __doc__ = f"The share of positives that are found. {BinaryScore.__doc__}"


class MulticlassRecall(RecallScore, MulticlassScore):
    __doc__ = f"The share of positives that are found. {MulticlassScore.__doc__}"


class MultilabelRecall(RecallScore, MultilabelScore):
    __doc__ = f"The share of positives that are found. {MultilabelScore.__doc__}"


class Recall(Task):
    """The share of positives that are found.

    :class:`BinaryRecall`, :class:`MulticlassRecall` or :class:`MultilabelRecall`, by task.
    """

    forms: ClassVar = {"binary": BinaryRecall, "multiclass": MulticlassRecall, "multilabel": MultilabelRecall}
    arguments: ClassVar = TASK_PARAMETERS
