"""The largest precision that some recall allows."""

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


class PrecisionAtRecall(OperatingPoint, abstract=True):
    """The largest precision that some recall allows.

    Args:
        min_recall: the recall that is needed.
    """

    torchmetrics_file = "precision_fixed_recall"
    bound = "min_recall"

    def choose(self, rising: Rising, least: float) -> Chosen:
        precision, recall = precision_and_recall(rising, self.task)
        return best_precise(precision, recall, rising, least)


class BinaryPrecisionAtFixedRecall(PrecisionAtRecall, BinaryOperating):
    """The largest precision that some recall allows, and the threshold it takes."""


class MulticlassPrecisionAtFixedRecall(PrecisionAtRecall, MulticlassOperating):
    """The largest precision that some recall allows, and the threshold it takes, of each class."""


class MultilabelPrecisionAtFixedRecall(PrecisionAtRecall, MultilabelOperating):
    """The largest precision that some recall allows, and the threshold it takes, of each label."""


class PrecisionAtFixedRecall(Task):
    """The largest precision that some recall allows, of a task."""

    forms: ClassVar = by_task(
        BinaryPrecisionAtFixedRecall, MulticlassPrecisionAtFixedRecall, MultilabelPrecisionAtFixedRecall
    )
    arguments: ClassVar = operating_parameters("min_recall")
