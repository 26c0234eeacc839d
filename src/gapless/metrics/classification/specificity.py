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
from gapless.metrics.tasks import Task


class SpecificityScore(Score):
    """The share of negatives that are left alone."""

    higher_is_better: bool | None = None

    def ratio(self, counts: Counts) -> Ratio:
        return counts.tn, counts.tn + counts.fp


class BinarySpecificity(SpecificityScore, BinaryScore):
    __doc__ = f"The share of negatives that are left alone. {BinaryScore.__doc__}"


class MulticlassSpecificity(SpecificityScore, MulticlassScore):
    __doc__ = f"The share of negatives that are left alone. {MulticlassScore.__doc__}"


class MultilabelSpecificity(SpecificityScore, MultilabelScore):
    __doc__ = f"The share of negatives that are left alone. {MultilabelScore.__doc__}"


class Specificity(Task):
    """The share of negatives that are left alone.

    :class:`BinarySpecificity`, :class:`MulticlassSpecificity` or :class:`MultilabelSpecificity`, by task.
    """

    forms: ClassVar = {
        "binary": BinarySpecificity,
        "multiclass": MulticlassSpecificity,
        "multilabel": MultilabelSpecificity,
    }
    arguments: ClassVar = TASK_PARAMETERS
