"""The share of targets and predictions of a class that are both."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.classification.base import BinaryScore, MulticlassScore, MultilabelScore
from gapless.metrics.classification.counts import Counts
from gapless.metrics.divide import divide
from gapless.metrics.tasks import Task


class Jaccard:
    """Intersection over union. No matrix is needed for it: per class, the counts say all."""

    average: str | None
    task: str
    ignore_index: int | None
    zero_division: float

    def score(self, counts: Counts) -> Tensor:
        inside, union = counts.tp, counts.either - counts.tp
        if self.average in ("binary", "none", None):
            return divide(inside, union, self.zero_division)
        kept = union.new_ones(union.shape)
        left_out = self._ignored(union.shape[-1])
        if left_out is not None:
            kept[left_out].fill_(0)
        if self.average == "micro":
            return divide(inside.sum(-1), (union * kept).sum(-1), self.zero_division)
        index = divide(inside, union, self.zero_division)
        if self.average == "weighted":
            kept = counts.actual
        elif self.task == "multiclass":
            kept = kept * (union != 0)
        return (kept * index).sum(-1) / kept.sum(-1)

    def _check_zero_division(self, value: Any) -> None:
        if not isinstance(value, (int, float)):
            raise ValueError(f"Expected argument `zero_division` to be a number, but got {value}.")

    def _ignored(self, classes: int) -> int | None:
        """The class that is not to count, if it is one. For labels, `ignore_index` is no class."""
        if self.task == "multilabel":
            return None
        inside = self.ignore_index is not None and 0 <= self.ignore_index < classes
        return self.ignore_index if inside else None


class BinaryJaccardIndex(Jaccard, BinaryScore):
    """Intersection over union."""

    beyond = "logits"

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

    beyond = ""

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
            checks.integer_above("num_classes", num_classes, 1)
            checks.one_of("average", average, checks.AVERAGES, stop=".")
        kwargs["zero_division"] = zero_division
        super().__init__(num_classes, 1, average, "global", ignore_index, validate_args, **kwargs)


class MultilabelJaccardIndex(Jaccard, MultilabelScore):
    """Intersection over union."""

    beyond = "logits"

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
            checks.one_of("average", average, checks.AVERAGES, stop=".")
        kwargs["zero_division"] = zero_division
        super().__init__(num_labels, threshold, average, "global", ignore_index, validate_args, **kwargs)


class JaccardIndex(Task):
    """Intersection over union of a task."""
