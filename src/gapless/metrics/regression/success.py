"""Whether events were predicted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.divide import divide
from gapless.metrics.regression.errors import PairMetric, float_pair
from gapless.metrics.rows import Rows
from gapless.metrics.statistic import Slot, Statistic


def count_events(batch: Batch, threshold: float, dim: int | None) -> tuple[Tensor, Tensor]:
    """Count where both are at least `threshold`, and where either is; for each index of `dim` if given."""
    preds, target = batch.derive(float_pair)
    if dim is not None and not 0 <= dim < preds.dim():
        raise ValueError(f"Expected keep_sequence dim to be in range [0, {preds.dim()}] but got {dim}")
    foreseen, happened = preds >= threshold, target >= threshold
    both_and_either = torch.stack((foreseen & happened, foreseen | happened))
    over = tuple(i + 1 for i in range(preds.dim()) if i != dim)
    both, either = (both_and_either.sum(over) if over else both_and_either.long()).unbind()
    return both, either


class EventCounts(Statistic):
    """How often an event was both predicted and observed, and how often either."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        super().__init__((threshold,), {"both": Slot(), "either": Slot()}, checked=False)

    def count(self, batch: Batch) -> None:
        both, either = batch.derive(count_events, self.threshold, None)
        self.state["both"].add_(both)
        self.state["either"].add_(either)

    def counts(self) -> tuple[Tensor, Tensor]:
        """Return both counts."""
        return self.state["both"], self.state["either"]


class EventCountsPerPlace(Rows):
    """The counts of :class:`EventCounts` for each index of a dimension."""

    def __init__(self, threshold: float, dim: int, capacity: int | None) -> None:
        self.threshold = threshold
        self.dim = dim
        column = ((), torch.int64)
        columns = {"both": column, "either": column}
        super().__init__((threshold, dim), columns, capacity, checked=capacity is not None)

    def count(self, batch: Batch) -> None:
        both, either = batch.derive(count_events, self.threshold, self.dim)
        if batch.args[0].numel():
            self.append(both=both, either=either)

    def counts(self) -> tuple[Tensor, Tensor]:
        """Return both counts, ``(N,)`` each."""
        self.require_rows()
        return self.valid_rows("both"), self.valid_rows("either")


class CriticalSuccessIndex(PairMetric):
    """The share of events, predicted or observed, that were both; 0 if there are none.

    Args:
        threshold: values of at least this are events.
        keep_sequence_dim: a dimension that is not summed over, for a value for each of its indices.
        capacity: with such a dimension, the fixed number of indices to store.
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
            EventCounts(self.threshold)
            if dim is None
            else EventCountsPerPlace(self.threshold, dim, capacity),
        )

    def value(self) -> Tensor:
        both, either = self.events.counts()
        return divide(both, either).to(self.dtype)
