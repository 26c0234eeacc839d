"""The receiver operating characteristic."""

from __future__ import annotations

from typing import Any, ClassVar

from gapless.metrics import checks
from gapless.metrics.classification.curves import Curve, ScoreMetric, mean_curve, receiver_operating
from gapless.metrics.classification.scores import Rising, Thresholds
from gapless.metrics.tasks import Task


class Roc(ScoreMetric):
    """False positive rates, true positive rates and thresholds, from the highest threshold down.

    Without thresholds the number of points depends on the data, and ``compute`` waits for the device to learn
    it.
    """

    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    higher_is_better: bool | None = None

    def score(self, rising: Rising) -> Curve:
        curve = receiver_operating(rising)
        if self._single:
            several = curve[2] if isinstance(curve[2], list) else [curve[2]]
            return curve[0][0], curve[1][0], several[0]
        return mean_curve(curve, descending=True, x=0) if self.average == "macro" else curve


class BinaryROC(Roc):
    __doc__ = f"""The receiver operating characteristic.
{ScoreMetric.__doc__}"""

    def __init__(
        self,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._begin("binary", 1, thresholds, ignore_index, validate_args, kwargs)


class MulticlassROC(Roc):
    __doc__ = f"""The receiver operating characteristic.

One curve per class, or their ``"macro"`` or ``"micro"`` average.
{ScoreMetric.__doc__}"""

    plot_legend_name = "Class"

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


class MultilabelROC(Roc):
    __doc__ = f"""The receiver operating characteristic. One curve per label.
{ScoreMetric.__doc__}"""

    plot_legend_name = "Label"

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


class ROC(Task):
    """The receiver operating characteristic."""

    forms: ClassVar = {"binary": BinaryROC, "multiclass": MulticlassROC, "multilabel": MultilabelROC}
    arguments: ClassVar = {
        "thresholds": None,
        "num_classes": None,
        "num_labels": None,
        "ignore_index": None,
        "validate_args": True,
    }
