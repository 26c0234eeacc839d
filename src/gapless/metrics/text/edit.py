"""How many characters texts differ by."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.reduced import EVERY
from gapless.metrics.rows import Rows
from gapless.metrics.statistic import Slot, Statistic
from gapless.metrics.text.rates import TextMetric
from gapless.metrics.text.strings import as_list, common_length, edit_distance


def distances(batch: Batch, cost: int) -> list[int]:
    """Of each pair: characters to put in or leave out at 1 each, and to change at `cost` each.

    Raises:
        ValueError: there are not as many predictions as targets, or one is no text.
    """
    several = [as_list(one) for one in batch.args]
    for name, texts in zip(("preds", "target"), several, strict=True):
        if not all(isinstance(one, str) for one in texts):
            raise ValueError(f"Expected all values in argument `{name}` to be string type, but got {texts}")
    preds, target = several
    if len(preds) != len(target):
        raise ValueError(
            "Expected argument `preds` and `target` to have same length, "
            f"but got {len(preds)} and {len(target)}"
        )
    return [distance(one, other, cost) for one, other in zip(preds, target, strict=True)]


def distance(one: str, other: str, cost: int) -> int:
    """The same of one pair.

    >>> [distance("rain", "shine", cost) for cost in (0, 1, 2)]
    [1, 3, 5]
    """
    if cost == 0:
        return abs(len(one) - len(other))
    if cost == 1:
        return edit_distance(one, other)
    # It costs no less than to leave a character out and to put another in: what stays is in both, in order.
    return len(one) + len(other) - 2 * common_length(one, other)


class Distances(Statistic):
    """The sum of distances, and how many there were."""

    def __init__(self, cost: int) -> None:
        self.cost = cost
        super().__init__((cost,), {"sum": Slot(), "seen": Slot()}, checked=False)

    def count(self, batch: Batch) -> None:
        found = batch.derive(distances, self.cost)
        self.state["sum"].add_(sum(found))
        self.state["seen"].add_(len(found))


class EveryDistance(Rows):
    """Each distance. They go to the device as arguments of kernels, one for each text."""

    def __init__(self, cost: int) -> None:
        self.cost = cost
        super().__init__((cost,), {"value": ((), torch.int32)}, checked=False)

    def count(self, batch: Batch) -> None:
        several = batch.derive(distances, self.cost)
        found = torch.empty(len(several), dtype=torch.int32, device=self.device)
        for place, number in enumerate(several):
            found[place].fill_(number)
        self.append(value=found)


class EditDistance(TextMetric):
    """Levenshtein's distance of texts, in characters.

    Args:
        substitution_cost: what it costs to change a character; to put one in or leave one out costs 1.
        reduction: ``"mean"`` or ``"sum"`` over texts, ``"none"`` or None for each.
    """

    torchmetrics_file = "edit"
    torchmetrics_slots = "edit_scores:i=sum num_elements:i=seen"
    plot_upper_bound = None
    distances: Any

    def __init__(self, substitution_cost: int = 1, reduction: str | None = "mean", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not (isinstance(substitution_cost, int) and substitution_cost >= 0):
            raise ValueError(
                f"Expected argument `substitution_cost` to be a positive integer, but got {substitution_cost}"
            )
        checks.one_of("reduction", reduction, (None, "mean", "sum", "none"))
        self.substitution_cost = substitution_cost
        self.reduction = reduction
        every = reduction in EVERY
        self.use("distances", (EveryDistance if every else Distances)(substitution_cost))

    def value(self) -> Tensor:
        if self.reduction in EVERY:
            every: Tensor = self.distances.known("value").clone()
            return every
        total: Tensor = self.distances.state["sum"]
        if self.reduction == "sum":
            return total.clone()
        return torch.div(total, self.distances.state["seen"]).nan_to_num(0.0).to(self.dtype)
