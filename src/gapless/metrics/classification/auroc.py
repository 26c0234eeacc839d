"""The area under the receiver operating characteristic."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.classification.curves import ScoreMetric, area, over_classes, partial_area, roc_points
from gapless.metrics.classification.scores import Rising, Thresholds
from gapless.metrics.tasks import Task


class RocArea(ScoreMetric):
    """The area under the receiver operating characteristic."""

    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    max_fpr: float | None = None

    def score(self, rising: Rising) -> Tensor:
        fpr, tpr = roc_points(rising)
        if self.max_fpr not in (None, 1):
            return partial_area(fpr, tpr, float(self.max_fpr or 0))[0]
        areas = area(fpr, tpr)
        return areas[0] if self._single else over_classes(areas, self.average, rising.positives)


class BinaryAUROC(RocArea):
    __doc__ = f"""The area under the receiver operating characteristic, up to `max_fpr` if given.
{ScoreMetric.__doc__}"""

    def __init__(
        self,
        max_fpr: float | None = None,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        if validate_args and max_fpr is not None and not (isinstance(max_fpr, float) and 0 < max_fpr <= 1):
            raise ValueError(f"Arguments `max_fpr` should be a float in range (0, 1], but got: {max_fpr}")
        self._begin("binary", 1, thresholds, ignore_index, validate_args, kwargs)
        self.max_fpr = max_fpr


class MulticlassAUROC(RocArea):
    __doc__ = f"""The area under the receiver operating characteristic of each class against the others.
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


class MultilabelAUROC(RocArea):
    __doc__ = f"""The area under the receiver operating characteristic of each label.
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


class AUROC(Task):
    """The area under the receiver operating characteristic, of a task."""

    forms: ClassVar = {"binary": BinaryAUROC, "multiclass": MulticlassAUROC, "multilabel": MultilabelAUROC}
    arguments: ClassVar = {
        "thresholds": None,
        "num_classes": None,
        "num_labels": None,
        "average": "macro",
        "max_fpr": None,
        "ignore_index": None,
        "validate_args": True,
    }
