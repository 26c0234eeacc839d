"""The largest sensitivity that some specificity allows."""

from __future__ import annotations

from typing import ClassVar

from gapless.metrics.classification.operating import (
    BinaryOperating,
    Chosen,
    MulticlassOperating,
    MultilabelOperating,
    OperatingPoint,
    best_rate,
    operating_parameters,
    sensitivity_and_specificity,
)
from gapless.metrics.classification.scores import Rising
from gapless.metrics.tasks import Task, by_task


class SensitivityThere(OperatingPoint, abstract=True):
    """The largest sensitivity that some specificity allows.

    Args:
        min_specificity: the specificity that is needed.
    """

    torchmetrics_file = "sensitivity_specificity"
    bound = "min_specificity"

    def choose(self, rising: Rising, least: float) -> Chosen:
        sensitivity, specificity = sensitivity_and_specificity(rising)
        return best_rate(sensitivity, specificity, rising, least)


class BinarySensitivityAtSpecificity(SensitivityThere, BinaryOperating):
    """The largest sensitivity that some specificity allows, and the threshold it takes."""


class MulticlassSensitivityAtSpecificity(SensitivityThere, MulticlassOperating):
    """The largest sensitivity that some specificity allows, and the threshold it takes, of each class."""


class MultilabelSensitivityAtSpecificity(SensitivityThere, MultilabelOperating):
    """The largest sensitivity that some specificity allows, and the threshold it takes, of each label."""


class SensitivityAtSpecificity(Task):
    """The largest sensitivity that some specificity allows, of a task."""

    forms: ClassVar = by_task(
        BinarySensitivityAtSpecificity, MulticlassSensitivityAtSpecificity, MultilabelSensitivityAtSpecificity
    )
    arguments: ClassVar = operating_parameters("min_specificity")
