"""Base classes of the metrics computed from true and false positives and negatives."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from gapless.metrics import checks, fusing
from gapless.metrics.classification.counts import (
    SYMBOLIC_COUNTS,
    BinaryCounts,
    HitCounts,
    MulticlassCounts,
    OutcomeCounts,
    SamplewiseBinaryCounts,
    SamplewiseMulticlassCounts,
    ThresholdLayout,
)
from gapless.metrics.classification.predictions import PredictionMetric
from gapless.metrics.divide import share
from gapless.metrics.tasks import Task

Ratio = tuple[Tensor, Tensor]
"""Numerator and denominator."""


class CountMetric(PredictionMetric, abstract=True):
    """A metric computed from outcome counts. A subclass defines :meth:`ratio`.

    ``update`` adds a batch to `counted`, whose class says how (`gapless.metrics.classification.counts`).
    """

    plot_lower_bound: float | None = 0.0
    plot_upper_bound: float | None = 1.0
    more_arguments: ClassVar[tuple[str, ...]] = ("logits", "capacity", "zero_division")
    average: str | None = "binary"
    top_k = 1
    zero_division: float = 0
    complement = False
    """Whether the score is 1 minus the ratio."""
    flat = False
    """Whether `num_classes` is None, so that hits and misses are not counted per class."""
    undefined = False
    """Whether the average over zero classes is NaN rather than 0."""
    counts_top_k = False
    """Whether, with ``top_k`` above 1, the macro average leaves out classes that are never a target: as in
    TorchMetrics, on purpose."""
    counted: Any

    def ratio(self, counts: OutcomeCounts) -> Ratio:
        """Return the numerator and denominator of the score."""
        raise NotImplementedError

    def update(self, preds: Tensor, target: Tensor) -> None:
        self.observe(preds, target)

    def value(self) -> Tensor:
        counted = self.counted
        if isinstance(counted, MulticlassCounts) and fusing.uses_kernels(counted.device):
            row = self.fused_row()
            if row is not None:
                return counted.derive("scores", partial(self._fused_scores, row))[row]
        return self.score(counted.derive("counts", counted.counts))

    def score(self, counts: OutcomeCounts) -> Tensor:
        """Return the metric's value, averaged as `average` says."""
        if self.average == "micro" and not self.flat:
            counts = counts.summed
        numerator, denominator = self.ratio(counts)
        if self.average not in ("macro", "weighted"):
            quotient = share(numerator, denominator, self.zero_division)
            return 1 - quotient if self.complement else quotient
        if self.average == "weighted":
            weights: Tensor | None = counts.support_weights
        elif self.task == "multilabel":
            weights = None  # equal ones
        else:
            weights = counts.actual_weights if self.counts_top_k and self.top_k != 1 else counts.weights
        return counts.average(numerator, denominator, self.zero_division, self.complement, weights)

    def _fused_scores(self, own_row: fusing.ScoreRow) -> dict[fusing.ScoreRow, Tensor]:
        """Compute the scores of all metrics that share these counts, in one kernel launch."""
        counted = self.counted
        other_rows = (reader.fused_row() for reader in counted.readers if isinstance(reader, CountMetric))
        rows = [own_row, *(row for row in other_rows if row is not None)]
        return fusing.compute_scores(counted.state["table"], counted.fused_rows, rows)

    def fused_row(self) -> fusing.ScoreRow | None:
        """Return the score as a row of the Triton kernel's input; None if the kernel cannot compute it."""
        averaged = self.average in ("micro", "macro", "weighted")
        if self.task != "multiclass" or self.flat or not averaged or not self._is_mean_ratio():
            return None
        weighing = {"micro": "micro", "weighted": "support"}.get(
            self.average or "", "actual" if self.counts_top_k and self.top_k != 1 else "either"
        )
        numerator, denominator = self.ratio(SYMBOLIC_COUNTS)
        options = (weighing, self.zero_division, self.complement, self.undefined)
        return fusing.score_row(numerator, denominator, *options)  # type: ignore[arg-type]

    def _is_mean_ratio(self) -> bool:
        """Whether the score is nothing but :meth:`ratio`, averaged over all classes."""
        return type(self).score is CountMetric.score

    def _set_up_counting(
        self,
        classes: int | None,
        multidim_average: str,
        ignore_index: int | None,
        validate_args: bool,
        options: dict[str, Any],
    ) -> tuple[bool | None, int | None]:
        """Set the options that all tasks share; return the options ``(logits, capacity)``."""
        zero_division = options.pop("zero_division", 0)
        logits, capacity = options.pop("logits", None), options.pop("capacity", None)
        self._set_up(ignore_index, validate_args, options, classes)
        if validate_args:
            checks.check_multidim(multidim_average)
            self._check_zero_division(zero_division)
        self.zero_division = zero_division
        self.multidim_average = multidim_average
        return logits, capacity

    def _use_threshold_counts(
        self, layout: ThresholdLayout, labels: int | None, capacity: int | None
    ) -> None:
        """Count the outcomes at a threshold, for each of `labels` labels (None for a single one)."""
        if self.multidim_average == "global":
            self.use("counted", BinaryCounts(layout, labels, self.validate_args))
        else:
            self.use("counted", SamplewiseBinaryCounts(layout, labels, self.validate_args, capacity))

    def _check_zero_division(self, value: Any) -> None:
        checks.check_zero_or_one("zero_division", value)


class BinaryScore(CountMetric, abstract=True):
    """The binary form of a score."""

    def __init__(
        self,
        threshold: float = 0.5,
        multidim_average: str = "global",
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        logits, capacity = self._set_up_counting(1, multidim_average, ignore_index, validate_args, kwargs)
        if validate_args:
            checks.check_unit_float("threshold", threshold)
        self.threshold = threshold
        self._use_threshold_counts(ThresholdLayout(threshold, ignore_index, logits), None, capacity)


class MulticlassScore(CountMetric, abstract=True):
    """The multiclass form of a score.

    Args:
        num_classes: the number of classes; may be None if `average` is ``"micro"``.
        top_k: a prediction is correct if the target is among this many largest scores.
    """

    task = "multiclass"
    more_arguments: ClassVar[tuple[str, ...]] = ("capacity", "zero_division")

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
        _, capacity = self._set_up_counting(
            num_classes, multidim_average, ignore_index, validate_args, kwargs
        )
        if validate_args:
            check_classes(num_classes, top_k, average)
        self.top_k = top_k
        self.average = average
        if num_classes is None:
            self.flat = True
            self.use("counted", HitCounts(ignore_index))
        elif multidim_average == "global":
            self.use("counted", MulticlassCounts(num_classes, top_k, ignore_index, validate_args))
        else:
            self.use(
                "counted",
                SamplewiseMulticlassCounts(num_classes, top_k, ignore_index, validate_args, capacity),
            )


class MultilabelScore(CountMetric, abstract=True):
    """The multilabel form of a score."""

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
        logits, capacity = self._set_up_counting(
            num_labels, multidim_average, ignore_index, validate_args, kwargs
        )
        if validate_args:
            checks.check_integer_above("num_labels", num_labels, 1)
            checks.check_unit_float("threshold", threshold, show_range=False)
            checks.check_one_of("average", average, checks.AVERAGES)
        self.threshold = threshold
        self.average = average
        self._use_threshold_counts(ThresholdLayout(threshold, ignore_index, logits), num_labels, capacity)


def check_classes(num_classes: int | None, top_k: int, average: str | None) -> None:
    """Raise ValueError for a number of classes, `top_k` or average that a multiclass metric rejects."""
    if num_classes is None and average != "micro":
        raise ValueError(
            f"Argument `num_classes` can only be `None` for `average='micro'`, but got `average={average}`."
        )
    if num_classes is not None:
        checks.check_integer_above("num_classes", num_classes, 1)
    if not isinstance(top_k, int) or top_k < 1:
        raise ValueError(
            f"Expected argument `top_k` to be an integer larger than or equal to 1, but got {top_k}"
        )
    if top_k > (num_classes or 1):
        raise ValueError(
            "Expected argument `top_k` to be smaller or equal to `num_classes` "
            f"but got {top_k} and {num_classes}"
        )
    checks.check_one_of("average", average, checks.AVERAGES)


class ScoreTask(Task, abstract=True):
    """One name for the binary, multiclass and multilabel form of a score."""

    defaults: ClassVar[dict[str, Any]] = {"average": "micro"}
