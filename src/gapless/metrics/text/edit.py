"""The edit distance of texts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.reduced import UNREDUCED
from gapless.metrics.rows import Rows
from gapless.metrics.statistic import Slot, Statistic
from gapless.metrics.text.rates import TextMetric
from gapless.metrics.text.strings import as_list, common_subsequence_length, edit_distance


def edit_distances(batch: Batch, cost: int) -> list[int]:
    """Return the edit distance of each pair, where a substitution costs `cost` and other edits 1.

    Raises:
        ValueError: the numbers of predictions and targets differ, or one is not a string.
    """
    arguments = [as_list(first) for first in batch.args]
    for name, texts in zip(("preds", "target"), arguments, strict=True):
        if not all(isinstance(first, str) for first in texts):
            raise ValueError(f"Expected all values in argument `{name}` to be string type, but got {texts}")
    preds, target = arguments
    if len(preds) != len(target):
        raise ValueError(
            "Expected argument `preds` and `target` to have same length, "
            f"but got {len(preds)} and {len(target)}"
        )
    return [weighted_edit_distance(first, second, cost) for first, second in zip(preds, target, strict=True)]


def weighted_edit_distance(first: str, second: str, cost: int) -> int:
    """Return the edit distance of one pair, where a substitution costs `cost` and other edits 1.

    >>> [weighted_edit_distance("rain", "shine", cost) for cost in (0, 1, 2)]
    [1, 3, 5]
    """
    if cost == 0:
        return abs(len(first) - len(second))
    if cost == 1:
        return edit_distance(first, second)
    # A substitution costs no less than a deletion and an insertion: a longest common subsequence stays.
    return len(first) + len(second) - 2 * common_subsequence_length(first, second)


class DistanceSums(Statistic):
    """The sum of edit distances, and their number."""

    def __init__(self, cost: int) -> None:
        self.cost = cost
        super().__init__((cost,), {"sum": Slot(), "seen": Slot()}, checked=False)

    def count(self, batch: Batch) -> None:
        values = batch.derive(edit_distances, self.cost)
        self.state["sum"].add_(sum(values))
        self.state["seen"].add_(len(values))


class DistanceRows(Rows):
    """Every edit distance; each reaches the device as a kernel argument, without a copy that waits."""

    def __init__(self, cost: int) -> None:
        self.cost = cost
        super().__init__((cost,), {"value": ((), torch.int32)}, checked=False)

    def count(self, batch: Batch) -> None:
        numbers = batch.derive(edit_distances, self.cost)
        values = torch.empty(len(numbers), dtype=torch.int32, device=self.device)
        for index, number in enumerate(numbers):
            values[index].fill_(number)
        self.append(value=values)


class EditDistance(TextMetric):
    """The Levenshtein distance of texts, in characters.

    Args:
        substitution_cost: the cost of substituting a character; inserting or deleting one costs 1.
        reduction: ``"mean"`` or ``"sum"`` over texts, ``"none"`` or None for each.
    """

    torchmetrics_file = "edit"
    torchmetrics_slots = (("edit_scores", "sum", "int64"), ("num_elements", "seen", "int64"))
    plot_upper_bound = None
    distances: Any

    def __init__(self, substitution_cost: int = 1, reduction: str | None = "mean", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not (isinstance(substitution_cost, int) and substitution_cost >= 0):
            raise ValueError(
                f"Expected argument `substitution_cost` to be a positive integer, but got {substitution_cost}"
            )
        checks.check_one_of("reduction", reduction, (None, "mean", "sum", "none"))
        self.substitution_cost = substitution_cost
        self.reduction = reduction
        every = reduction in UNREDUCED
        self.use("distances", (DistanceRows if every else DistanceSums)(substitution_cost))

    def value(self) -> Tensor:
        if self.reduction in UNREDUCED:
            every: Tensor = self.distances.valid_rows("value").clone()
            return every
        total: Tensor = self.distances.state["sum"]
        if self.reduction == "sum":
            return total.clone()
        return torch.div(total, self.distances.state["seen"]).nan_to_num(0.0).to(self.dtype)
