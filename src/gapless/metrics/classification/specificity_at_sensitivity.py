"""The largest specificity that some sensitivity allows."""

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


class SpecificityThere(OperatingPoint, abstract=True):
    """The largest specificity that some sensitivity allows.

    Args:
        min_sensitivity: the sensitivity that is needed.
    """

    torchmetrics_file = "specificity_sensitivity"
    bound = "min_sensitivity"

    def choose(self, rising: Rising, least: float) -> Chosen:
        sensitivity, specificity = sensitivity_and_specificity(rising)
        return best_rate(specificity, sensitivity, rising, least)


class BinarySpecificityAtSensitivity(SpecificityThere, BinaryOperating):
    """The largest specificity that some sensitivity allows, and the threshold it takes."""


class MulticlassSpecificityAtSensitivity(SpecificityThere, MulticlassOperating):
    """The largest specificity that some sensitivity allows, and the threshold it takes, of each class."""


class MultilabelSpecificityAtSensitivity(SpecificityThere, MultilabelOperating):
    """The largest specificity that some sensitivity allows, and the threshold it takes, of each label."""


class SpecificityAtSensitivity(Task):
    """The largest specificity that some sensitivity allows, of a task."""

    forms: ClassVar = by_task(
        BinarySpecificityAtSensitivity, MulticlassSpecificityAtSensitivity, MultilabelSpecificityAtSensitivity
    )
    arguments: ClassVar = operating_parameters("min_sensitivity")
