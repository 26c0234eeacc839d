"""How much of the targets' variance predictions account for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.checks import warn
from gapless.metrics.host import within_reach
from gapless.metrics.regression.errors import (
    ARGUMENT,
    PairMetric,
    check_columns,
    check_outputs,
    difference,
    pair,
)
from gapless.metrics.sized import SizedByData
from gapless.metrics.statistic import Slot, State

MULTIOUTPUT = ("raw_values", "uniform_average", "variance_weighted")
PARTS = ("target", "target_squared", "error", "error_squared")


class ErrorMoments(SizedByData):
    """Sums and sums of squares of targets and errors, per output, in float64.

    The number of outputs is that of the first batch, unless it is given.
    """

    def __init__(self, outputs: int | None) -> None:
        super().__init__(outputs, (), checked=False)

    def sized(self, size: int | None) -> dict[str, Slot]:
        shape = () if size is None or size == 1 else (size,)
        return {"seen": Slot(), **{name: Slot(shape, torch.float64) for name in PARTS}}

    def size_in(self, saved: State) -> int:
        return len(saved["target"]) if saved["target"].dim() else 0

    def count(self, batch: Batch) -> None:
        target = batch.derive(pair)[1]
        if target.dim() > 2:
            raise ValueError(
                "Expected both prediction and target to be 1D or 2D tensors,"
                f" but received tensors with dimension {target.shape}"
            )
        self.show(target.shape[1:].numel())
        check_columns(target, target, self.size or 1)
        wide = self.state["target"].dtype
        target, error = target.to(wide), batch.derive(difference).to(wide)
        shape = self.state["target"].shape
        for name, value in zip(PARTS, (target, target**2, error, error**2), strict=True):
            self.state[name].add_(value.sum(0).reshape(shape))
        self.state["seen"].add_(target.shape[0])


def explained(left: Tensor, whole: Tensor, some_left: Tensor, some_whole: Tensor, multioutput: str) -> Tensor:
    """What part of `whole` (outputs,) is not `left`: 1 without any left, 0 where there was nothing."""
    apart = whole.masked_fill(~some_whole, 1.0)  # No gradient follows from a division by zero.
    scores = torch.where(some_whole, 1 - left / apart, torch.zeros_like(left)).masked_fill(~some_left, 1.0)
    if multioutput == "raw_values":
        return scores
    return scores.mean() if multioutput == "uniform_average" else (whole / whole.sum() * scores).sum()


class ExplainedShare(PairMetric, abstract=True):
    """What R² and explained variance have in common.

    Args:
        multioutput: ``"raw_values"``, ``"uniform_average"`` or ``"variance_weighted"``.
        num_outputs: the number of outputs, for processes that may have no data; None to see it in the first
            batch.
    """

    is_differentiable = True
    higher_is_better: bool | None = True
    moments: ErrorMoments

    def __init__(self, multioutput: str, num_outputs: int | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if multioutput not in MULTIOUTPUT:
            raise ValueError(
                f"Invalid input to argument `multioutput`. Choose one of the following: {MULTIOUTPUT}"
            )
        self.multioutput = multioutput
        self.use("moments", ErrorMoments(num_outputs))


class R2Score(ExplainedShare):
    """R²: 1 minus the squared errors in shares of the targets' spread.

    Below two samples it is NaN on a GPU, and ``compute`` raises ValueError on the CPU, where looking costs no
    wait; where there are too few to adjust for, it warns there.

    Args:
        adjusted: the number of independent regressors to adjust for; no adjustment where there are too few
            samples.
    """

    torchmetrics_file = "r2"
    torchmetrics_slots = (
        "sum_squared_error:f=target_squared sum_error:f=target residual:f=error_squared total:i=seen"
    )
    plot_upper_bound = 1.0

    def __init__(
        self,
        adjusted: int = 0,
        multioutput: str = "uniform_average",
        num_outputs: int | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(adjusted, int) or adjusted < 0:
            raise ValueError("`adjusted` parameter should be an integer larger or equal to 0.")
        super().__init__(multioutput, num_outputs, **kwargs)
        self.adjusted = adjusted

    def value(self) -> Tensor:
        state = self.moments.state
        seen, left = state["seen"], state["error_squared"]
        spread = state["target_squared"] - state["target"] ** 2 / seen
        some_left, some_spread = ~(left.abs() <= 1e-4), ~(spread.abs() <= 1e-4)  # NaN is some
        score = explained(left, spread, some_left, some_spread, self.multioutput)
        if within_reach(seen):
            self._tell(int(seen))
        if self.adjusted:
            room = seen - self.adjusted - 1
            score = torch.where(room > 0, 1 - (1 - score) * (seen - 1) / room.clamp(min=1), score)
        return score.masked_fill(seen < 2, torch.nan).to(self.dtype)

    def _tell(self, seen: int) -> None:
        """Say what is wrong with the number of samples, which on the CPU can be looked at."""
        if seen < 2:
            raise ValueError("Needs at least two samples to calculate r2 score.")
        if self.adjusted and self.adjusted >= seen - 1:
            few = (
                "Division by zero"
                if self.adjusted == seen - 1
                else "More independent regressions than data points"
            )
            warn(f"{few} in adjusted r2 score. Falls back to standard r2 score.")


class ExplainedVariance(ExplainedShare):
    """1 minus the errors' variance in shares of the targets' variance."""

    torchmetrics_file = "explained_variance"
    torchmetrics_slots = (
        "sum_error:f-=error sum_squared_error:f=error_squared sum_target:f=target "
        "sum_squared_target:f=target_squared num_obs:f=seen"
    )
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    def __init__(
        self, multioutput: str = "uniform_average", num_outputs: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(multioutput, num_outputs, **kwargs)

    def value(self) -> Tensor:
        state = self.moments.state
        seen = state["seen"]
        left = state["error_squared"] / seen - (state["error"] / seen) ** 2
        variance = state["target_squared"] / seen - (state["target"] / seen) ** 2
        return explained(left, variance, left != 0, variance != 0, self.multioutput).to(self.dtype)


class RelativeSquaredError(PairMetric):
    """The squared errors in shares of the targets' spread, averaged over `num_outputs` outputs.

    Args:
        squared: False for the root.
    """

    torchmetrics_file = "rse"
    torchmetrics_slots = (
        "sum_squared_error:f1=target_squared sum_error:f1=target residual:f1=error_squared total:i=seen"
    )
    is_differentiable = True
    higher_is_better = False
    moments: ErrorMoments

    def __init__(self, num_outputs: int = 1, squared: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_outputs = check_outputs(num_outputs, ARGUMENT)
        self.squared = squared
        self.use("moments", ErrorMoments(num_outputs))

    def value(self) -> Tensor:
        state = self.moments.state
        spread = state["target_squared"] - state["target"] ** 2 / state["seen"]
        share = state["error_squared"] / spread.clamp(min=torch.finfo(self.dtype).eps)
        return (share if self.squared else share.sqrt()).mean().to(self.dtype)
