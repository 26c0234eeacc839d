"""The share of predictions that are wrong."""

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


class HammingDistanceScore(Score):
    """The share of predictions that are wrong."""

    complement = True
    higher_is_better: bool | None = False

    def ratio(self, counts: Counts) -> Ratio:
        if self.task == "multiclass":
            return counts.tp, counts.tp + counts.fn
        right = counts.tp + counts.tn
        return right, right + counts.fp + counts.fn


class BinaryHammingDistance(HammingDistanceScore, BinaryScore):
    __doc__ = f"The share of predictions that are wrong. {BinaryScore.__doc__}"


class MulticlassHammingDistance(HammingDistanceScore, MulticlassScore):
    __doc__ = f"The share of predictions that are wrong. {MulticlassScore.__doc__}"


class MultilabelHammingDistance(HammingDistanceScore, MultilabelScore):
    __doc__ = f"The share of predictions that are wrong. {MultilabelScore.__doc__}"


class HammingDistance(Task):
    """The share of predictions that are wrong.

    :class:`BinaryHammingDistance`, :class:`MulticlassHammingDistance` or :class:`MultilabelHammingDistance`,
    by task.
    """

    forms: ClassVar = {
        "binary": BinaryHammingDistance,
        "multiclass": MulticlassHammingDistance,
        "multilabel": MultilabelHammingDistance,
    }
    arguments: ClassVar = TASK_PARAMETERS
