"""What the metrics of true and false positives and negatives have in common."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from gapless.metrics import checks, fusing
from gapless.metrics.classification.counts import (
    FORMS,
    BinaryCounts,
    Counts,
    Hits,
    MulticlassCounts,
    SamplewiseBinaryCounts,
    SamplewiseMulticlassCounts,
    Sides,
)
from gapless.metrics.classification.predictions import PredictionMetric
from gapless.metrics.divide import share
from gapless.metrics.tasks import Task

Ratio = tuple[Tensor, Tensor]


class Score:
    """How a metric follows from counts. A subclass gives :meth:`ratio`."""

    task = "binary"
    average: str | None = "binary"
    top_k = 1
    zero_division: float = 0
    complement = False
    """Whether the score is 1 minus the ratio."""
    flat = False
    """Whether the counts are of no class, because their number is not known."""
    undefined = False
    """Whether the average over no class is NaN, rather than 0."""
    counts_top_k = False
    """Whether a class that is only predicted counts as absent where ``top_k`` is above 1."""

    def ratio(self, counts: Counts) -> Ratio:
        """What is divided by what."""
        raise NotImplementedError

    def score(self, counts: Counts) -> Tensor:
        """The metric's value."""
        if self.average == "micro" and not self.flat:
            counts = counts.summed
        if self.average not in ("macro", "weighted"):
            quotient = share(*self.ratio(counts), self.zero_division)
            return 1 - quotient if self.complement else quotient
        weights = self._weights(counts)
        over, under = self.ratio(counts)
        return counts.average(over, under, self.zero_division, self.complement, weights)

    def _weights(self, counts: Counts) -> Tensor | None:
        if self.average == "weighted":
            return counts.support_weights
        if self.task == "multilabel":
            return None
        return counts.actual_weights if self.counts_top_k and self.top_k != 1 else counts.weights


class CountMetric(Score, PredictionMetric, abstract=True):
    """A metric of counts, of whatever task."""

    plot_lower_bound: float | None = 0.0
    plot_upper_bound: float | None = 1.0
    beyond = "logits capacity zero_division"
    counted: Any

    def value(self) -> Tensor:
        counted = self.counted
        if isinstance(counted, MulticlassCounts) and fusing.on(counted.device):
            asked = self.scored()
            if asked is not None:
                return counted.derive("scores", partial(self._scores_of_all, asked))[asked]
        return self.score(counted.derive("counts", counted.counts))

    def _scores_of_all(self, asked: fusing.Scored) -> dict[fusing.Scored, Tensor]:
        """The scores of all metrics that are computed together from the same counts, in one launch."""
        counted = self.counted
        others = (one.scored() for one in counted.readers if isinstance(one, CountMetric))
        rows = [asked, *(row for row in others if row is not None)]
        return fusing.scores(counted.state["table"], counted.asked, rows)

    def scored(self) -> fusing.Scored | None:
        """What Triton's kernel is told of the score; None where it is none of those that it computes."""
        averaged = self.average in ("micro", "macro", "weighted")
        if self.task != "multiclass" or self.flat or not averaged or not self._linear():
            return None
        weighing = {"micro": "micro", "weighted": "support"}.get(
            self.average or "", "actual" if self.counts_top_k and self.top_k != 1 else "either"
        )
        over, under = self.ratio(FORMS)
        told = (weighing, self.zero_division, self.complement, self.undefined)
        return fusing.scored(over, under, *told)  # type: ignore[arg-type]

    def _linear(self) -> bool:
        """Whether :meth:`ratio`, averaged over all classes, says what the score is."""
        return type(self).score is Score.score

    def _count(
        self,
        classes: int | None,
        multidim_average: str,
        ignore_index: int | None,
        validate_args: bool,
        options: dict[str, Any],
    ) -> tuple[bool | None, int | None]:
        """Set up what the tasks have in common; returns ``(logits, capacity)``."""
        zero_division = options.pop("zero_division", 0)
        logits, capacity = options.pop("logits", None), options.pop("capacity", None)
        self._begin(ignore_index, validate_args, options, classes)
        if validate_args:
            checks.multidim(multidim_average)
            self._check_zero_division(zero_division)
        self.zero_division = zero_division
        self.multidim_average = multidim_average
        return logits, capacity

    def _count_sides(self, sides: Sides, labels: int | None, capacity: int | None) -> None:
        """Count what lies on either side of a threshold, of `labels` labels; of one if None."""
        if self.multidim_average == "global":
            self.use("counted", BinaryCounts(sides, labels, self.validate_args))
        else:
            self.use("counted", SamplewiseBinaryCounts(sides, labels, self.validate_args, capacity))

    def _check_zero_division(self, value: Any) -> None:
        checks.zero_or_one("zero_division", value)


class BinaryScore(CountMetric, abstract=True):
    """The binary form."""

    def __init__(
        self,
        threshold: float = 0.5,
        multidim_average: str = "global",
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        logits, capacity = self._count(1, multidim_average, ignore_index, validate_args, kwargs)
        if validate_args:
            checks.unit_float("threshold", threshold)
        self.threshold = threshold
        self._count_sides(Sides(threshold, ignore_index, logits), None, capacity)


class MulticlassScore(CountMetric, abstract=True):
    """The multiclass form.

    Args:
        num_classes: how many classes there are; may be None where `average` is ``"micro"``.
        top_k: a prediction is right where the target is among so many largest scores.
    """

    task = "multiclass"
    beyond = "capacity zero_division"

    def __init__(
        self,
        num_classes: int | None = None,
        top_k: int = 1,
        average: str | None = "macro",
        multidim_average: str = "global",
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        _, capacity = self._count(num_classes, multidim_average, ignore_index, validate_args, kwargs)
        if validate_args:
            check_classes(num_classes, top_k, average)
        self.top_k = top_k
        self.average = average
        if num_classes is None:
            self.flat = True
            self.use("counted", Hits(ignore_index))
        elif multidim_average == "global":
            self.use("counted", MulticlassCounts(num_classes, top_k, ignore_index, validate_args))
        else:
            self.use(
                "counted",
                SamplewiseMulticlassCounts(num_classes, top_k, ignore_index, validate_args, capacity),
            )


class MultilabelScore(CountMetric, abstract=True):
    """The multilabel form."""

    task = "multilabel"

    def __init__(
        self,
        num_labels: int,
        threshold: float = 0.5,
        average: str | None = "macro",
        multidim_average: str = "global",
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        logits, capacity = self._count(num_labels, multidim_average, ignore_index, validate_args, kwargs)
        if validate_args:
            checks.integer_above("num_labels", num_labels, 1)
            checks.unit_float("threshold", threshold, range_told=False)
            checks.one_of("average", average, checks.AVERAGES)
        self.threshold = threshold
        self.average = average
        self._count_sides(Sides(threshold, ignore_index, logits), num_labels, capacity)


def check_classes(num_classes: int | None, top_k: int, average: str | None) -> None:
    """Raises ValueError for classes, `top_k` or an average that a multiclass metric does not take."""
    if num_classes is None and average != "micro":
        raise ValueError(
            f"Argument `num_classes` can only be `None` for `average='micro'`, but got `average={average}`."
        )
    if num_classes is not None:
        checks.integer_above("num_classes", num_classes, 1)
    if not isinstance(top_k, int) or top_k < 1:
        raise ValueError(
            f"Expected argument `top_k` to be an integer larger than or equal to 1, but got {top_k}"
        )
    if top_k > (num_classes or 1):
        raise ValueError(
            "Expected argument `top_k` to be smaller or equal to `num_classes` "
            f"but got {top_k} and {num_classes}"
        )
    checks.one_of("average", average, checks.AVERAGES)


class ScoreTask(Task, abstract=True):
    """A name for the forms of a score."""

    defaults: ClassVar[dict[str, Any]] = {"average": "micro"}
