"""The share of predictions that are wrong."""

from __future__ import annotations

from typing import ClassVar

from gapless.metrics.classification.accuracy import AccuracyScore
from gapless.metrics.classification.base import (
    TASK_PARAMETERS,
    BinaryScore,
    MulticlassScore,
    MultilabelScore,
)
from gapless.metrics.tasks import Task, by_task


class HammingDistanceScore(AccuracyScore):
    """The share of predictions that are wrong."""

    complement = True
    counts_top_k = False
    higher_is_better: bool | None = False


class BinaryHammingDistance(HammingDistanceScore, BinaryScore):
    """The share of predictions that are wrong."""


class MulticlassHammingDistance(HammingDistanceScore, MulticlassScore):
    """The share of predictions that are wrong."""


class MultilabelHammingDistance(HammingDistanceScore, MultilabelScore):
    """The share of predictions that are wrong."""


class HammingDistance(Task):
    """The share of predictions that are wrong."""

    forms: ClassVar = by_task(BinaryHammingDistance, MulticlassHammingDistance, MultilabelHammingDistance)
    arguments: ClassVar = TASK_PARAMETERS
