"""The share of negatives that are left alone."""

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


class SpecificityScore(Score):
    """The share of negatives that are left alone."""

    higher_is_better: bool | None = None

    def ratio(self, counts: Counts) -> Ratio:
        return counts.tn, counts.tn + counts.fp


class BinarySpecificity(SpecificityScore, BinaryScore):
    """The share of negatives that are left alone."""


class MulticlassSpecificity(SpecificityScore, MulticlassScore):
    """The share of negatives that are left alone."""


class MultilabelSpecificity(SpecificityScore, MultilabelScore):
    """The share of negatives that are left alone."""


class Specificity(Task):
    """The share of negatives that are left alone."""

    forms: ClassVar = by_task(BinarySpecificity, MulticlassSpecificity, MultilabelSpecificity)
    arguments: ClassVar = TASK_PARAMETERS
