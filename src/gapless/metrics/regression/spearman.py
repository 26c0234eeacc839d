"""Correlation of ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.regression.errors import ARGUMENT, PairMetric, check_outputs, columns_of
from gapless.metrics.rows import Rows
from gapless.metrics.statistic import storable

EPSILON = 1e-6
"""What TorchMetrics adds to the divisor: constant predictions have correlation 0, not NaN."""


class Pairs(Rows):
    """Every prediction and target."""

    def __init__(self, outputs: int, capacity: int | None) -> None:
        self.outputs = outputs
        shape = () if outputs == 1 else (outputs,)
        columns = {"preds": (shape, torch.float32), "target": (shape, torch.float32)}
        super().__init__((outputs,), columns, capacity, checked=capacity is not None)

    def count(self, batch: Batch) -> None:
        preds, target = batch.args
        if not (preds.is_floating_point() and target.is_floating_point()):
            raise TypeError(
                "Expected `preds` and `target` both to be floating point tensors, "
                f"but got {preds.dtype} and {target.dtype}"
            )
        preds, target = columns_of(preds, target, self.outputs)
        self.append(preds=preds, target=target)


def ranks(rows: Tensor, there: Tensor | None) -> Tensor:
    """Ranks from 1 within each of ``[outputs, n]`` rows, equal values sharing their mean rank, in float64.

    Values that are not `there` are sorted behind the others and have no meaning.
    """
    if there is not None:
        rows = rows.masked_fill(~there, torch.inf)
    ordered = rows.sort(-1).values
    below = torch.searchsorted(ordered, rows)
    up_to = torch.searchsorted(ordered, rows, right=True)
    if there is not None:  # A value that is infinite itself is not equal to those that are missing.
        up_to = torch.minimum(up_to, there.sum())
    rank = (below + up_to + 1).to(storable(torch.float64, rows.device)) / 2
    return rank.masked_fill(rows.isnan(), torch.nan)


def centered(rank: Tensor, there: Tensor | None, seen: Any) -> Tensor:
    """`rank` less its mean; 0 for what is not there."""
    if there is None:
        return rank - rank.mean(-1, keepdim=True)
    rank = rank.masked_fill(~there, 0.0)
    return (rank - rank.sum(-1, keepdim=True) / seen).masked_fill(~there, 0.0)


class SpearmanCorrCoef(PairMetric):
    """Spearman's correlation of ranks, for each of `num_outputs` outputs; NaN where a value is.

    Predictions and targets are floats. Ranks need every value, so all are kept, in storage that doubles when
    it is full; ``compute`` sorts them.

    Args:
        capacity: the number of rows there is room for, in fixed storage, as float32. Rows beyond it are left
            out and told with the next reading.
    """

    plot_lower_bound = -1.0
    plot_upper_bound = 1.0
    is_differentiable = False
    higher_is_better = True
    pairs: Pairs

    def __init__(self, num_outputs: int = 1, capacity: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_outputs = check_outputs(num_outputs, ARGUMENT)
        self.use("pairs", Pairs(num_outputs, capacity))

    def value(self) -> Tensor:
        there = self.pairs.there()
        rows = [
            self.pairs.read(name).reshape(-1, self.num_outputs).T.contiguous() for name in ("preds", "target")
        ]
        seen = rows[0].shape[1] if there is None else there.sum()
        x, y = (centered(ranks(one, there), there, seen) for one in rows)
        spread = ((x * x).sum(-1) / seen).sqrt() * ((y * y).sum(-1) / seen).sqrt()
        found = ((x * y).sum(-1) / seen / (spread + EPSILON)).clamp(-1.0, 1.0).to(self.dtype)
        return found[0] if self.num_outputs == 1 else found
