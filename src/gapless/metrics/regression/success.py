"""Whether events were foreseen."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.divide import divide
from gapless.metrics.regression.errors import PairMetric, pair
from gapless.metrics.rows import Rows
from gapless.metrics.statistic import Slot, Statistic


def events(batch: Batch, threshold: float, dim: int | None) -> tuple[Tensor, Tensor]:
    """How often both were at the threshold or above, and how often one was; for each place of `dim`."""
    preds, target = batch.derive(pair)
    if dim is not None and not 0 <= dim < preds.dim():
        raise ValueError(f"Expected keep_sequence dim to be in range [0, {preds.dim()}] but got {dim}")
    foreseen, happened = preds >= threshold, target >= threshold
    found = torch.stack((foreseen & happened, foreseen | happened))
    over = tuple(i + 1 for i in range(preds.dim()) if i != dim)
    both, either = (found.sum(over) if over else found.long()).unbind()
    return both, either


class Events(Statistic):
    """How often an event was both foreseen and there, and either."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        super().__init__((threshold,), {"both": Slot(), "either": Slot()}, checked=False)

    def count(self, batch: Batch) -> None:
        both, either = batch.derive(events, self.threshold, None)
        self.state["both"].add_(both)
        self.state["either"].add_(either)

    def counts(self) -> tuple[Tensor, Tensor]:
        """Both numbers."""
        return self.state["both"], self.state["either"]


class EventsInOrder(Rows):
    """The same for each place of a dimension."""

    def __init__(self, threshold: float, dim: int, capacity: int | None) -> None:
        self.threshold = threshold
        self.dim = dim
        column = ((), torch.int64)
        columns = {"both": column, "either": column}
        super().__init__((threshold, dim), columns, capacity, checked=capacity is not None)

    def count(self, batch: Batch) -> None:
        both, either = batch.derive(events, self.threshold, self.dim)
        if batch.args[0].numel():
            self.append(both=both, either=either)

    def counts(self) -> tuple[Tensor, Tensor]:
        """Both numbers."""
        self.rows_needed()
        return self.known("both"), self.known("either")


class CriticalSuccessIndex(PairMetric):
    """The share of events, foreseen or not, that were foreseen; 0 where there are none.

    Args:
        threshold: from which on a value is an event.
        keep_sequence_dim: a dimension that is not summed over, for a value for each of its places.
        capacity: with such a dimension, the number of places there is room for, in fixed storage.
    """

    torchmetrics_file = "csi"
    is_differentiable = False
    higher_is_better = True
    events: Any

    def __init__(self, threshold: float, keep_sequence_dim: int | None = None, **kwargs: Any) -> None:
        capacity = kwargs.pop("capacity", None)
        super().__init__(**kwargs)
        dim = keep_sequence_dim
        if dim is not None and (not isinstance(dim, int) or dim < 0):
            raise ValueError(f"Expected keep_sequence_dim to be a non-negative integer but got {dim}")
        self.threshold = float(threshold)
        self.keep_sequence_dim = dim
        self.use(
            "events",
            Events(self.threshold) if dim is None else EventsInOrder(self.threshold, dim, capacity),
        )

    def value(self) -> Tensor:
        both, either = self.events.counts()
        return divide(both, either).to(self.dtype)
