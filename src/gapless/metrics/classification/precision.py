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
from gapless.metrics.tasks import Task, by_task


class PrecisionScore(Score):
    """The share of positive predictions that are right."""

    torchmetrics_file: ClassVar[str | None] = "precision_recall"
    counts_top_k = True

    def ratio(self, counts: Counts) -> Ratio:
        return counts.tp, counts.predicted


class BinaryPrecision(PrecisionScore, BinaryScore):
    """The share of positive predictions that are right."""


class MulticlassPrecision(PrecisionScore, MulticlassScore):
    """The share of positive predictions that are right."""


class MultilabelPrecision(PrecisionScore, MultilabelScore):
    """The share of positive predictions that are right."""


class Precision(Task):
    """The share of positive predictions that are right."""

    forms: ClassVar = by_task(BinaryPrecision, MulticlassPrecision, MultilabelPrecision)
    arguments: ClassVar = TASK_PARAMETERS
