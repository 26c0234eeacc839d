"""Kendall's rank correlation."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.breadth import Breadth
from gapless.metrics.regression.errors import NUM_OUTPUTS_MESSAGE, PairMetric, as_columns, check_outputs
from gapless.metrics.rows import Column, Rows
from gapless.metrics.statistic import storable

VARIANTS, ALTERNATIVES = ("a", "b", "c"), ("two-sided", "less", "greater")
"""In the order of TorchMetrics' error messages."""


class AllPairs(Rows):
    """Every prediction and target, as float64."""

    def __init__(self, outputs: int) -> None:
        self.outputs = outputs
        self.breadth = Breadth("output", outputs)
        column: Column = (() if outputs == 1 else (outputs,), torch.float64)
        super().__init__((outputs,), {"preds": column, "target": column}, checked=False)

    def count(self, batch: Batch) -> None:
        wide = storable(torch.float64, self.device)
        preds, target = as_columns(batch.args[0], batch.args[1], self.outputs)
        self.append(preds=preds.to(wide), target=target.to(wide))


class Ties(NamedTuple):
    """Counts for runs of t equal values, summed over runs: pairs within them, and sums for a p-value."""

    pairs: Tensor
    cubes: Tensor
    """Sum of t (t - 1) (t - 2)."""
    spread: Tensor
    """Sum of t (t - 1) (2 t + 5)."""
    distinct: Tensor


def count_ties(ordered: Tensor) -> Ties:
    """Return the ties within each of the sorted rows ``[K, n]``."""
    low = torch.searchsorted(ordered, ordered)
    size = torch.searchsorted(ordered, ordered, right=True) - low
    more, first = size - 1, low == torch.arange(ordered.shape[1], device=ordered.device)
    return Ties(more.sum(1) // 2, (more * (size - 2)).sum(1), (more * (2 * size + 5)).sum(1), first.sum(1))


def count_inversions(rows: Tensor) -> Tensor:
    """Return how many pairs of each row are in descending order, ``[K]``, by a merge sort of all rows at
    once.

    Blocks of 1, 2, 4, … values are sorted; for two neighbouring blocks, the values of the first that are
    larger than each of the second are counted by binary search.
    """
    count, length = rows.shape
    width, total = 1, torch.zeros(count, dtype=torch.int64, device=rows.device)
    padded = 1 << max(length - 1, 0).bit_length()
    rows = torch.nn.functional.pad(rows, (0, padded - length), value=length)
    while width < padded:
        blocks = rows.view(count, -1, 2, width)
        first, second = blocks[:, :, 0].contiguous(), blocks[:, :, 1].contiguous()
        larger = width - torch.searchsorted(first, second, right=True)
        total += larger.sum((1, 2))
        width *= 2
        rows = rows.view(count, -1, width).sort(2).values
    return total


class KendallRankCorrCoef(PairMetric):
    """Kendall's correlation: concordant less discordant pairs; NaN if a value is NaN.

    Every value is kept, in storage that doubles when full. For n values ``compute`` takes n log² n steps, in
    a handful of kernels for each doubling of n.

    Args:
        variant: how ties count: ``"a"`` not at all, ``"b"`` in the divisor, ``"c"`` by the number of distinct
            values.
        t_test: whether to return the p-value of the hypothesis of no correlation, too.
        alternative: the alternative hypothesis: ``"two-sided"``, ``"less"`` or ``"greater"``.
    """

    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    is_differentiable = False
    higher_is_better = None
    pairs: AllPairs

    def __init__(
        self,
        variant: str = "b",
        t_test: bool = False,
        alternative: str | None = "two-sided",
        num_outputs: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not isinstance(t_test, bool):
            raise ValueError(f"Argument `t_test` is expected to be of a type `bool`, but got {type(t_test)}.")
        if t_test and alternative is None:
            raise ValueError("Argument `alternative` is required if `t_test=True` but got `None`.")
        checks.check_one_of("variant", variant, VARIANTS)
        checks.check_one_of("alternative", alternative, (*ALTERNATIVES, None))
        self.variant = variant
        self.alternative = alternative if t_test else None
        self.num_outputs = check_outputs(num_outputs, NUM_OUTPUTS_MESSAGE)
        self.use("pairs", AllPairs(num_outputs))

    def value(self) -> Any:
        self.pairs.require_rows()
        x, y = (self.pairs.read(name).reshape(-1, self.num_outputs).T for name in ("preds", "target"))
        unknown = (x.isnan() | y.isnan()).any(1)
        number = x.shape[1]
        order = y.argsort(dim=1, stable=True)
        order = order.gather(1, x.gather(1, order).argsort(dim=1, stable=True))
        x, y = x.gather(1, order), y.gather(1, order)
        ranked = y.sort(1).values
        of_x, of_y = count_ties(x), count_ties(ranked)
        level = torch.searchsorted(ranked, y)
        both = count_ties(torch.searchsorted(x, x) * number + level).pairs
        wrong = count_inversions(level)
        right = number * (number - 1) // 2 - of_x.pairs - of_y.pairs + both - wrong
        results = [self._tau(right, wrong, number, of_x, of_y)]
        if self.alternative is not None:
            results.append(self._p_value((right - wrong).to(x.dtype), number, of_x, of_y))
            results[1] = results[1].masked_fill(results[0].isnan(), torch.nan)
        results = [result.masked_fill(unknown, torch.nan).to(self.dtype) for result in results]
        if self.num_outputs == 1:
            results = [result[0] for result in results]
        return results[0] if len(results) == 1 else tuple(results)

    def _tau(self, right: Tensor, wrong: Tensor, number: int, of_x: Ties, of_y: Ties) -> Tensor:
        """Return the coefficient from the numbers of concordant (`right`) and discordant (`wrong`) pairs."""
        wide = storable(torch.float64, right.device)
        over, pairs = (right - wrong).to(wide), number * (number - 1) // 2
        if self.variant == "a":
            under = (right + wrong).to(wide)
        elif self.variant == "b":
            under = ((pairs - of_x.pairs).to(wide) * (pairs - of_y.pairs)).sqrt()
        else:
            fewest = torch.minimum(of_x.distinct, of_y.distinct).to(wide)
            under = (fewest - 1) / fewest * number**2 / 2
        return (over / under).clamp(-1, 1)

    def _p_value(self, over: Tensor, number: int, of_x: Ties, of_y: Ties) -> Tensor:
        """Return the p-value, with the normal approximation of the difference `over`."""
        spread, both = number * (number - 1) * (2 * number + 5), number * (number - 1)
        if self.variant == "a":
            score = 3 * over / (spread / 2) ** 0.5
        else:
            variance = (spread - of_x.spread - of_y.spread).to(over.dtype) / 18
            variance = variance + 2 * of_x.pairs.to(over.dtype) * of_y.pairs / both
            variance = variance + of_x.cubes.to(over.dtype) * of_y.cubes / (9 * both) / (number - 2)
            score = over / variance.sqrt()
        if self.alternative == "two-sided":
            return 2 * torch.special.ndtr(-score.abs())
        return torch.special.ndtr(score if self.alternative == "less" else -score)
