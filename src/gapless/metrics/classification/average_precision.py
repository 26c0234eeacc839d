"""Average precision."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.classification.curves import ScoreMetric, average_precision, over_classes
from gapless.metrics.classification.scores import Rising, Thresholds
from gapless.metrics.tasks import Task


class PrecisionArea(ScoreMetric):
    """Average precision, the area under the curve of precision over recall in steps."""

    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    def score(self, rising: Rising) -> Tensor:
        absent = self.task == "multiclass" and rising.exact
        scores = average_precision(rising, math.nan if absent else 0.0)
        return scores[0] if self._single else over_classes(scores, self.average, rising.positives)


class BinaryAveragePrecision(PrecisionArea):
    __doc__ = f"""Average precision.
{ScoreMetric.__doc__}"""

    def __init__(
        self,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._begin("binary", 1, thresholds, ignore_index, validate_args, kwargs)


class MulticlassAveragePrecision(PrecisionArea):
    __doc__ = f"""Average precision of each class against the others.
{ScoreMetric.__doc__}"""

    plot_legend_name = "Class"

    def __init__(
        self,
        num_classes: int,
        average: str | None = "macro",
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        if validate_args:
            checks.one_of("average", average, ("macro", "weighted", "none", None), comma="")
        self._begin("multiclass", num_classes, thresholds, ignore_index, validate_args, kwargs)
        self.num_classes = num_classes
        self.average = average


class MultilabelAveragePrecision(PrecisionArea):
    __doc__ = f"""Average precision of each label.
{ScoreMetric.__doc__}"""

    plot_legend_name = "Label"

    def __init__(
        self,
        num_labels: int,
        average: str | None = "macro",
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        if validate_args:
            checks.one_of("average", average, checks.AVERAGES, comma="")
        self._begin("multilabel", num_labels, thresholds, ignore_index, validate_args, kwargs)
        self.num_labels = num_labels
        self.average = average


class AveragePrecision(Task):
    """Average precision, of a task."""

    forms: ClassVar = {
        "binary": BinaryAveragePrecision,
        "multiclass": MulticlassAveragePrecision,
        "multilabel": MultilabelAveragePrecision,
    }
    arguments: ClassVar = {
        "thresholds": None,
        "num_classes": None,
        "num_labels": None,
        "average": "macro",
        "ignore_index": None,
        "validate_args": True,
    }
