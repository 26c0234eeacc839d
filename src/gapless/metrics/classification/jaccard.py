"""The Jaccard index: intersection over union of targets and predictions."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.classification.count_metrics import (
    BinaryScore,
    CountMetric,
    MulticlassScore,
    MultilabelScore,
    Ratio,
)
from gapless.metrics.classification.counts import OutcomeCounts
from gapless.metrics.divide import divide, share
from gapless.metrics.tasks import Task


def with_zero_at(values: Tensor, index: int) -> Tensor:
    """Return a copy of `values`, ``(C,)``, with 0 for the class `index`."""
    result = values.clone()
    result[index].fill_(0)
    return result


class Jaccard(CountMetric, abstract=True):
    """Intersection over union, computed from counts per class instead of a confusion matrix."""

    undefined = True

    def ratio(self, counts: OutcomeCounts) -> Ratio:
        return counts.tp, counts.either - counts.tp

    def score(self, counts: OutcomeCounts) -> Tensor:
        intersection, union = self.ratio(counts)
        if self.average in ("binary", "none", None):
            return share(intersection, union, self.zero_division)
        ignored = self._ignored_class(union.shape[-1])
        if self.average == "micro":
            counted = union if ignored is None else with_zero_at(union, ignored)
            return divide(intersection.sum(-1), counted.sum(-1), self.zero_division)
        index = share(intersection, union, self.zero_division)
        if self.average == "macro" and self.task == "multilabel":
            return index.mean(-1)
        kept = counts.actual
        if self.average == "macro":
            kept = union != 0
            kept = kept if ignored is None else with_zero_at(kept, ignored)
        return (kept * index).sum(-1) / kept.sum(-1)

    def _is_mean_ratio(self) -> bool:
        return self.ignore_index is None

    def _check_zero_division(self, value: Any) -> None:
        if not isinstance(value, (int, float)):
            raise ValueError(f"Expected argument `zero_division` to be a number, but got {value}.")

    def _ignored_class(self, classes: int) -> int | None:
        """Return `ignore_index` if it is one of the classes; None for labels, of which it is none."""
        if self.task == "multilabel":
            return None
        is_class = self.ignore_index is not None and 0 <= self.ignore_index < classes
        return self.ignore_index if is_class else None


class BinaryJaccardIndex(Jaccard, BinaryScore):
    """Intersection over union."""

    more_arguments = ("logits",)

    def __init__(
        self,
        threshold: float = 0.5,
        ignore_index: int | None = None,
        validate_args: bool = True,
        zero_division: float = 0,
        **kwargs: Any,
    ) -> None:
        kwargs["zero_division"] = zero_division
        super().__init__(threshold, "global", ignore_index, validate_args, **kwargs)


class MulticlassJaccardIndex(Jaccard, MulticlassScore):
    """Intersection over union."""

    more_arguments = ()

    def __init__(
        self,
        num_classes: int,
        average: str | None = "macro",
        ignore_index: int | None = None,
        validate_args: bool = True,
        zero_division: float = 0,
        **kwargs: Any,
    ) -> None:
        if validate_args:
            checks.check_integer_above("num_classes", num_classes, 1)
            checks.check_one_of("average", average, checks.AVERAGES, stop=".")
        kwargs["zero_division"] = zero_division
        super().__init__(num_classes, 1, average, "global", ignore_index, validate_args, **kwargs)


class MultilabelJaccardIndex(Jaccard, MultilabelScore):
    """Intersection over union."""

    more_arguments = ("logits",)

    def __init__(
        self,
        num_labels: int,
        threshold: float = 0.5,
        average: str | None = "macro",
        ignore_index: int | None = None,
        validate_args: bool = True,
        zero_division: float = 0,
        **kwargs: Any,
    ) -> None:
        if validate_args:
            checks.check_one_of("average", average, checks.AVERAGES, stop=".")
        kwargs["zero_division"] = zero_division
        super().__init__(num_labels, threshold, average, "global", ignore_index, validate_args, **kwargs)


class JaccardIndex(Task):
    """Intersection over union of a task."""
