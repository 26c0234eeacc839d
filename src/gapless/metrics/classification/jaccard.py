"""The share of targets and predictions of a class that are both."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.classification.base import BinaryScore, MulticlassScore, MultilabelScore, Ratio
from gapless.metrics.classification.counts import Counts
from gapless.metrics.divide import divide, share
from gapless.metrics.tasks import Task


def without(values: Tensor, place: int) -> Tensor:
    """`values`, ``(C,)``, with 0 for one class."""
    found = values.clone()
    found[place].fill_(0)
    return found


class Jaccard:
    """Intersection over union. No matrix is needed for it: per class, the counts say all."""

    average: str | None
    task: str
    ignore_index: int | None
    zero_division: float
    undefined = True

    def ratio(self, counts: Counts) -> Ratio:
        return counts.tp, counts.either - counts.tp

    def score(self, counts: Counts) -> Tensor:
        inside, union = self.ratio(counts)
        if self.average in ("binary", "none", None):
            return share(inside, union, self.zero_division)
        left_out = self._ignored(union.shape[-1])
        if self.average == "micro":
            whole = union if left_out is None else without(union, left_out)
            return divide(inside.sum(-1), whole.sum(-1), self.zero_division)
        index = share(inside, union, self.zero_division)
        if self.average == "macro" and self.task == "multilabel":
            return index.mean(-1)
        kept = counts.actual
        if self.average == "macro":
            kept = union != 0
            kept = kept if left_out is None else without(kept, left_out)
        return (kept * index).sum(-1) / kept.sum(-1)

    def _linear(self) -> bool:
        return self.ignore_index is None

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
