"""Precision over recall."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from gapless.metrics import checks
from gapless.metrics.classification.curves import Curve, ScoreMetric, mean_curve, precision_recall
from gapless.metrics.classification.scores import Rising, Thresholds
from gapless.metrics.tasks import Task


class PrecisionRecall(ScoreMetric):
    """Precision, recall and thresholds, from the lowest threshold up.

    Without thresholds the number of points depends on the data, and ``compute`` waits for the device to learn
    it.
    """

    higher_is_better: bool | None = None

    def score(self, rising: Rising) -> Curve:
        curve = precision_recall(rising, math.nan if self.task == "multiclass" else 1.0)
        if self._single:
            several = curve[2] if isinstance(curve[2], list) else [curve[2]]
            return curve[0][0], curve[1][0], several[0]
        return mean_curve(curve, descending=False, x=0) if self.average == "macro" else curve


class BinaryPrecisionRecallCurve(PrecisionRecall):
    __doc__ = f"""Precision over recall.
{ScoreMetric.__doc__}"""

    def __init__(
        self,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._begin("binary", 1, thresholds, ignore_index, validate_args, kwargs)


class MulticlassPrecisionRecallCurve(PrecisionRecall):
    __doc__ = f"""Precision over recall. One curve per class, or their ``"macro"`` or ``"micro"`` average.
{ScoreMetric.__doc__}"""

    def __init__(
        self,
        num_classes: int,
        thresholds: Thresholds = None,
        average: str | None = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        if validate_args:
            checks.one_of("average", average, ("micro", "macro", None), listed="None, 'micro' or 'macro'")
        self._begin("multiclass", num_classes, thresholds, ignore_index, validate_args, kwargs)
        self.num_classes = num_classes
        self.average = average


class MultilabelPrecisionRecallCurve(PrecisionRecall):
    __doc__ = f"""Precision over recall. One curve per label.
{ScoreMetric.__doc__}"""

    def __init__(
        self,
        num_labels: int,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._begin("multilabel", num_labels, thresholds, ignore_index, validate_args, kwargs)
        self.num_labels = num_labels


class PrecisionRecallCurve(Task):
    """Precision over recall."""

    forms: ClassVar = {
        "binary": BinaryPrecisionRecallCurve,
        "multiclass": MulticlassPrecisionRecallCurve,
        "multilabel": MultilabelPrecisionRecallCurve,
    }
    arguments: ClassVar = {
        "thresholds": None,
        "num_classes": None,
        "num_labels": None,
        "ignore_index": None,
        "validate_args": True,
    }
