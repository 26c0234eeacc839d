"""Metrics of scores against all thresholds: areas under curves, and the curves themselves, task by task."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.classification.curves import Bounds, Curve, mean_curve, over_classes
from gapless.metrics.classification.predictions import PredictionMetric
from gapless.metrics.classification.scores import Problem, Rising, Thresholds, scored
from gapless.metrics.declaring import squeezed


class ScoreMetric(PredictionMetric, abstract=True):
    """A metric of scores, of whatever task.

    Args:
        thresholds: a number of evenly spaced thresholds, or the thresholds; with None every score is kept.
        capacity: without thresholds, the number of samples there is room for, in fixed storage.
    """

    needs_scores = True
    beyond = "logits capacity"
    average: str | None = None
    scored: Any

    def value(self) -> Any:
        return self.score(self.scored.rising(self.average == "micro"))

    def score(self, rising: Rising) -> Any:
        """The metric's value."""
        raise NotImplementedError

    def _score(
        self,
        classes: int,
        thresholds: Thresholds,
        ignore_index: int | None,
        validate_args: bool,
        options: dict[str, Any],
    ) -> None:
        """Set up the statistic for `classes` classes or labels."""
        logits, capacity = options.pop("logits", None), options.pop("capacity", None)
        normalization = options.pop("normalization", "sigmoid")
        self._begin(ignore_index, validate_args, options)
        problem = Problem(self.task, classes, ignore_index, normalization, logits)
        statistic = scored(problem, thresholds, validate_args, capacity)
        self.thresholds = thresholds
        self.use("scored", statistic)

    @property
    def _single(self) -> bool:
        """Whether there is one curve only."""
        return self.task == "binary" or self.average == "micro"


class AreaMetric(ScoreMetric, abstract=True):
    """The area under a curve. A subclass gives :meth:`areas`."""

    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    def areas(self, rising: Rising) -> Tensor:
        """``[K]``: the area under each curve."""
        raise NotImplementedError

    def area_bounds(self, rising: Rising) -> Bounds:
        """What the areas may be when only bins of scores are known."""
        raise NotImplementedError

    def bounds(self) -> Bounds:
        """The least and the largest value that the metric could have with every score kept, on the device.

        With `thresholds` only the number of scores between two of them is known; within these bounds lies the
        value without. Where every score is kept, both are the value. The host does not wait; with several
        processes it is a collective operation, as ``compute`` is.

        Example:
            >>> area = BinaryAUROC(thresholds=5)
            >>> area.update(torch.tensor([0.1, 0.3, 0.4, 0.9]), torch.tensor([0, 0, 1, 1]))
            >>> [bound.item() for bound in area.bounds()]
            [0.75, 1.0]
        """
        with self.sync_context(should_sync=self._local is None):
            rising = self.scored.rising(self.average == "micro")
            areas = (self.areas(rising),) * 2 if rising.exact else self.area_bounds(rising)
            low, high = (squeezed(self._over_classes(one, rising)) for one in areas)
        return low, high

    def score(self, rising: Rising) -> Tensor:
        return self._over_classes(self.areas(rising), rising)

    def _over_classes(self, areas: Tensor, rising: Rising) -> Tensor:
        return areas[0] if self._single else over_classes(areas, self.average, rising.positives)


class CurveMetric(ScoreMetric, abstract=True):
    """A curve and its thresholds. A subclass gives :meth:`curve`.

    Without thresholds the number of points depends on the data, and ``compute`` waits for the device to learn
    it.
    """

    higher_is_better: bool | None = None
    descending = False
    """Whether the curve begins at the highest threshold."""

    def curve(self, rising: Rising) -> Curve:
        """Two rows of values and the thresholds, for each class."""
        raise NotImplementedError

    def score(self, rising: Rising) -> Any:
        curve = self.curve(rising)
        if self._single:
            several = curve[2] if isinstance(curve[2], list) else [curve[2]]
            return curve[0][0], curve[1][0], several[0]
        return mean_curve(curve, self.descending, x=0) if self.average == "macro" else curve


class BinaryScored(ScoreMetric, abstract=True):
    """The binary form, of areas and curves."""

    def __init__(
        self,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._score(1, thresholds, ignore_index, validate_args, kwargs)


class MulticlassArea(AreaMetric, abstract=True):
    """The multiclass form of an area: each class against the others.

    Args:
        average: ``"macro"``, ``"weighted"`` (by support), or ``"none"`` or None for a value per class.
    """

    task = "multiclass"
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
        self._score(num_classes, thresholds, ignore_index, validate_args, kwargs)
        self.num_classes = num_classes
        self.average = average


class MultilabelArea(AreaMetric, abstract=True):
    """The multilabel form of an area."""

    task = "multilabel"
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
        self._score(num_labels, thresholds, ignore_index, validate_args, kwargs)
        self.num_labels = num_labels
        self.average = average


class MulticlassCurve(CurveMetric, abstract=True):
    """The multiclass form of a curve.

    Args:
        average: None for a curve per class, ``"macro"`` for their mean, ``"micro"`` for the curve of all
            classes taken together.
    """

    task = "multiclass"

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
        self._score(num_classes, thresholds, ignore_index, validate_args, kwargs)
        self.num_classes = num_classes
        self.average = average


class MultilabelCurve(CurveMetric, abstract=True):
    """The multilabel form of a curve: one per label."""

    task = "multilabel"

    def __init__(
        self,
        num_labels: int,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        self._score(num_labels, thresholds, ignore_index, validate_args, kwargs)
        self.num_labels = num_labels
