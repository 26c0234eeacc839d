"""The share of positive predictions that are right."""

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


class PrecisionScore(Score):
    """The share of positive predictions that are right."""

    counts_top_k = True

    def ratio(self, counts: Counts) -> Ratio:
        return counts.tp, counts.tp + counts.fp


class BinaryPrecision(PrecisionScore, BinaryScore):
    __doc__ = f"The share of positive predictions that are right. {BinaryScore.__doc__}"


class MulticlassPrecision(PrecisionScore, MulticlassScore):
    __doc__ = f"The share of positive predictions that are right. {MulticlassScore.__doc__}"


class MultilabelPrecision(PrecisionScore, MultilabelScore):
    __doc__ = f"The share of positive predictions that are right. {MultilabelScore.__doc__}"


class Precision(Task):
    """The share of positive predictions that are right.

    :class:`BinaryPrecision`, :class:`MulticlassPrecision` or :class:`MultilabelPrecision`, by task.
    """

    forms: ClassVar = {
        "binary": BinaryPrecision,
        "multiclass": MulticlassPrecision,
        "multilabel": MultilabelPrecision,
    }
    arguments: ClassVar = TASK_PARAMETERS
