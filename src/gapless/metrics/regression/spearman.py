"""Spearman's rank correlation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.breadth import Breadth
from gapless.metrics.regression.errors import NUM_OUTPUTS_MESSAGE, PairMetric, as_columns, check_outputs
from gapless.metrics.rows import Rows
from gapless.metrics.statistic import storable

EPSILON = 1e-6
"""TorchMetrics adds this to the divisor: constant predictions have correlation 0, not NaN."""


class Pairs(Rows):
    """Every prediction and target."""

    def __init__(self, outputs: int, capacity: int | None) -> None:
        self.outputs = outputs
        self.breadth = Breadth("output", outputs)
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
        preds, target = as_columns(preds, target, self.outputs)
        self.append(preds=preds, target=target)


def mean_ranks(rows: Tensor, mask: Tensor | None) -> Tensor:
    """Return ranks from 1 within each of the rows ``[outputs, n]`` in float64; equal values share their mean
    rank.

    Values outside `mask` are ranked last; their ranks have no meaning.
    """
    if mask is not None:
        rows = rows.masked_fill(~mask, torch.inf)
    ordered = rows.sort(-1).values
    below = torch.searchsorted(ordered, rows)
    up_to = torch.searchsorted(ordered, rows, right=True)
    if mask is not None:  # Infinite values must not tie with masked ones.
        up_to = torch.minimum(up_to, mask.sum())
    rank = (below + up_to + 1).to(storable(torch.float64, rows.device)) / 2
    return rank.masked_fill(rows.isnan(), torch.nan)


def center_ranks(rank: Tensor, mask: Tensor | None, number: Any) -> Tensor:
    """Return `rank` minus its mean over the `number` values in `mask`; 0 outside."""
    if mask is None:
        return rank - rank.mean(-1, keepdim=True)
    rank = rank.masked_fill(~mask, 0.0)
    return (rank - rank.sum(-1, keepdim=True) / number).masked_fill(~mask, 0.0)


class SpearmanCorrCoef(PairMetric):
    """Spearman's rank correlation, for each of `num_outputs` outputs; NaN if a value is NaN.

    Predictions and targets are floats. Ranks need every value, so all are kept, in storage that doubles when
    full; ``compute`` sorts them.

    Args:
        capacity: the fixed number of rows to store, as float32. Further rows are left out and reported with
            the next reading.
    """

    plot_lower_bound = -1.0
    plot_upper_bound = 1.0
    is_differentiable = False
    higher_is_better = True
    pairs: Pairs

    def __init__(self, num_outputs: int = 1, capacity: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_outputs = check_outputs(num_outputs, NUM_OUTPUTS_MESSAGE)
        self.use("pairs", Pairs(num_outputs, capacity))

    def value(self) -> Tensor:
        mask = self.pairs.valid_mask()
        rows = [
            self.pairs.read(name).reshape(-1, self.num_outputs).T.contiguous() for name in ("preds", "target")
        ]
        number = rows[0].shape[1] if mask is None else mask.sum()
        x, y = (center_ranks(mean_ranks(row, mask), mask, number) for row in rows)
        spread = ((x * x).sum(-1) / number).sqrt() * ((y * y).sum(-1) / number).sqrt()
        coefficients = ((x * y).sum(-1) / number / (spread + EPSILON)).clamp(-1.0, 1.0).to(self.dtype)
        return coefficients[0] if self.num_outputs == 1 else coefficients
