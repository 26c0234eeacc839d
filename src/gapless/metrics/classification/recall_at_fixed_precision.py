"""The largest recall that some precision allows."""

from __future__ import annotations

from typing import ClassVar

from gapless.metrics.classification.operating import (
    BinaryOperating,
    Chosen,
    MulticlassOperating,
    MultilabelOperating,
    OperatingPoint,
    best_precise,
    operating_parameters,
    precision_and_recall,
)
from gapless.metrics.classification.scores import Rising
from gapless.metrics.tasks import Task, by_task


class RecallAtPrecision(OperatingPoint, abstract=True):
    """The largest recall that some precision allows.

    Args:
        min_precision: the precision that is needed.
    """

    torchmetrics_file = "recall_fixed_precision"
    bound = "min_precision"

    def choose(self, rising: Rising, least: float) -> Chosen:
        precision, recall = precision_and_recall(rising, self.task)
        return best_precise(recall, precision, rising, least)


class BinaryRecallAtFixedPrecision(RecallAtPrecision, BinaryOperating):
    """The largest recall that some precision allows, and the threshold it takes."""


class MulticlassRecallAtFixedPrecision(RecallAtPrecision, MulticlassOperating):
    """The largest recall that some precision allows, and the threshold it takes, of each class."""


class MultilabelRecallAtFixedPrecision(RecallAtPrecision, MultilabelOperating):
    """The largest recall that some precision allows, and the threshold it takes, of each label."""


class RecallAtFixedPrecision(Task):
    """The largest recall that some precision allows, of a task."""

    forms: ClassVar = by_task(
        BinaryRecallAtFixedPrecision, MulticlassRecallAtFixedPrecision, MultilabelRecallAtFixedPrecision
    )
    arguments: ClassVar = operating_parameters("min_precision")
