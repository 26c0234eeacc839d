"""The share of negative predictions that are right."""

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


class NegativePredictiveValueScore(Score):
    """The share of negative predictions that are right."""

    counts_top_k = True
    higher_is_better: bool | None = None

    def ratio(self, counts: Counts) -> Ratio:
        return counts.tn, counts.tn + counts.fn


class BinaryNegativePredictiveValue(NegativePredictiveValueScore, BinaryScore):
    """The share of negative predictions that are right."""


class MulticlassNegativePredictiveValue(NegativePredictiveValueScore, MulticlassScore):
    """The share of negative predictions that are right."""


class MultilabelNegativePredictiveValue(NegativePredictiveValueScore, MultilabelScore):
    """The share of negative predictions that are right."""


class NegativePredictiveValue(Task):
    """The share of negative predictions that are right."""

    forms: ClassVar = by_task(
        BinaryNegativePredictiveValue, MulticlassNegativePredictiveValue, MultilabelNegativePredictiveValue
    )
    arguments: ClassVar = TASK_PARAMETERS
