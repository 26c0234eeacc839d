"""Correlation of the order of pairs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.regression.errors import ARGUMENT, PairMetric, check_outputs, columns_of
from gapless.metrics.rows import Rows
from gapless.metrics.statistic import storable

VARIANTS, ALTERNATIVES = ("a", "b", "c"), ("two-sided", "less", "greater")


class AllPairs(Rows):
    """Every prediction and target, as float64."""

    def __init__(self, outputs: int) -> None:
        self.outputs = outputs
        super().__init__((outputs,), {"preds": None, "target": None}, checked=False)

    def count(self, batch: Batch) -> None:
        wide = storable(torch.float64, self.device)
        preds, target = columns_of(batch.args[0], batch.args[1], self.outputs)
        self.append(preds=preds.to(wide), target=target.to(wide))


class Ties(NamedTuple):
    """Of runs of equal values, t each: pairs within them, and the sums that a p-value needs."""

    pairs: Tensor
    cubes: Tensor
    """Of t (t - 1) (t - 2)."""
    spread: Tensor
    """Of t (t - 1) (2 t + 5)."""
    distinct: Tensor


def ties_in(ordered: Tensor) -> Ties:
    """Of rows that are in order, ``[K, n]``."""
    low = torch.searchsorted(ordered, ordered)
    size = torch.searchsorted(ordered, ordered, right=True) - low
    more, first = size - 1, low == torch.arange(ordered.shape[1], device=ordered.device)
    return Ties(more.sum(1) // 2, (more * (size - 2)).sum(1), (more * (2 * size + 5)).sum(1), first.sum(1))


def inversions(rows: Tensor) -> Tensor:
    """``[K]``: how many values of a row stand before a smaller one, counted while blocks are merged.

    Blocks of 1, 2, 4, … values are in order: those of the first of two that are larger than one of the second
    are found by bisection.
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
    """Kendall's correlation: pairs in the same order less those in the other; NaN where a value is.

    Every value is kept, in storage that doubles when it is full. For n values ``compute`` takes n log² n
    steps, in a handful of kernels for each doubling of n.

    Args:
        variant: how ties count: ``"a"`` not at all, ``"b"`` in the divisor, ``"c"`` by the number of distinct
            values.
        t_test: whether the p-value of the hypothesis that there is no correlation is given, too.
        alternative: against which: ``"two-sided"``, ``"less"`` or ``"greater"``.
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
        checks.one_of("variant", variant, VARIANTS)
        checks.one_of("alternative", alternative, (*ALTERNATIVES, None))
        self.variant = variant
        self.alternative = alternative if t_test else None
        self.num_outputs = check_outputs(num_outputs, ARGUMENT)
        self.use("pairs", AllPairs(num_outputs))

    def value(self) -> Any:
        self.pairs.rows_needed()
        x, y = (self.pairs.read(name).reshape(-1, self.num_outputs).T for name in ("preds", "target"))
        unknown = (x.isnan() | y.isnan()).any(1)
        number = x.shape[1]
        order = y.argsort(dim=1, stable=True)
        order = order.gather(1, x.gather(1, order).argsort(dim=1, stable=True))
        x, y = x.gather(1, order), y.gather(1, order)
        ranked = y.sort(1).values
        of_x, of_y = ties_in(x), ties_in(ranked)
        level = torch.searchsorted(ranked, y)
        both = ties_in(torch.searchsorted(x, x) * number + level).pairs
        wrong = inversions(level)
        right = number * (number - 1) // 2 - of_x.pairs - of_y.pairs + both - wrong
        found = [self._tau(right, wrong, number, of_x, of_y)]
        if self.alternative is not None:
            found.append(self._p_value((right - wrong).to(x.dtype), number, of_x, of_y))
            found[1] = found[1].masked_fill(found[0].isnan(), torch.nan)
        found = [one.masked_fill(unknown, torch.nan).to(self.dtype) for one in found]
        if self.num_outputs == 1:
            found = [one[0] for one in found]
        return found[0] if len(found) == 1 else tuple(found)

    def _tau(self, right: Tensor, wrong: Tensor, number: int, of_x: Ties, of_y: Ties) -> Tensor:
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
        """By the normal distribution, which that of the difference approaches."""
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
