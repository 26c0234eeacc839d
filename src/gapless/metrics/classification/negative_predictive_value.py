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
from gapless.metrics.tasks import Task


class NegativePredictiveValueScore(Score):
    """The share of negative predictions that are right."""

    counts_top_k = True
    higher_is_better: bool | None = None

    def ratio(self, counts: Counts) -> Ratio:
        return counts.tn, counts.tn + counts.fn


class BinaryNegativePredictiveValue(NegativePredictiveValueScore, BinaryScore):
    __doc__ = f"The share of negative predictions that are right. {BinaryScore.__doc__}"


class MulticlassNegativePredictiveValue(NegativePredictiveValueScore, MulticlassScore):
    __doc__ = f"The share of negative predictions that are right. {MulticlassScore.__doc__}"


class MultilabelNegativePredictiveValue(NegativePredictiveValueScore, MultilabelScore):
    __doc__ = f"The share of negative predictions that are right. {MultilabelScore.__doc__}"


class NegativePredictiveValue(Task):
    """The share of negative predictions that are right.

    :class:`BinaryNegativePredictiveValue`, :class:`MulticlassNegativePredictiveValue` or
    :class:`MultilabelNegativePredictiveValue`, by task.
    """

    forms: ClassVar = {
        "binary": BinaryNegativePredictiveValue,
        "multiclass": MulticlassNegativePredictiveValue,
        "multilabel": MultilabelNegativePredictiveValue,
    }
    arguments: ClassVar = TASK_PARAMETERS
