"""How much of the targets' variance predictions explain."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.breadth import Breadth
from gapless.metrics.checks import warn
from gapless.metrics.host import is_readable_on_host
from gapless.metrics.regression.errors import (
    NUM_OUTPUTS_MESSAGE,
    PairMetric,
    check_columns,
    check_outputs,
    difference,
    float_pair,
)
from gapless.metrics.sized import SizedByData
from gapless.metrics.statistic import Slot, State

MULTIOUTPUT = ("raw_values", "uniform_average", "variance_weighted")
"""In the order of TorchMetrics' error message."""
MOMENTS = ("target", "target_squared", "error", "error_squared")
"""Slots of :class:`ErrorMoments` beside the number of samples."""


class ErrorMoments(SizedByData):
    """Sums and sums of squares of targets and errors, per output, in float64.

    The number of outputs is that of the first batch, unless given.
    """

    def __init__(self, outputs: int | None) -> None:
        super().__init__(outputs, (), checked=False)

    def slots_for(self, size: int | None) -> dict[str, Slot]:
        self.breadth = Breadth("output", size or 1)
        shape = () if size is None or size == 1 else (size,)
        return {"seen": Slot(), **{name: Slot(shape, torch.float64) for name in MOMENTS}}

    def size_in(self, saved: State) -> int:
        if saved["target"].dim():
            return len(saved["target"])
        return int(is_readable_on_host(saved["seen"]) and bool(saved["seen"] > 0))  # or no batch yet

    def count(self, batch: Batch) -> None:
        target = batch.derive(float_pair)[1]
        if target.dim() > 2:
            raise ValueError(
                "Expected both prediction and target to be 1D or 2D tensors,"
                f" but received tensors with dimension {target.shape}"
            )
        self.fix_size(target.shape[1:].numel())
        check_columns(target, target, self.size or 1)
        wide = self.state["target"].dtype
        target, error = target.to(wide), batch.derive(difference).to(wide)
        shape = self.state["target"].shape
        for name, value in zip(MOMENTS, (target, target**2, error, error**2), strict=True):
            self.state[name].add_(value.sum(0).reshape(shape))
        self.state["seen"].add_(target.shape[0])


def explained_share(
    left: Tensor, whole: Tensor, some_left: Tensor, some_whole: Tensor, multioutput: str
) -> Tensor:
    """Return ``1 - left / whole`` per output, or averaged: 1 if nothing is left, 0 if `whole` is 0."""
    apart = whole.masked_fill(~some_whole, 1.0)  # No NaN gradient from a division by zero.
    scores = torch.where(some_whole, 1 - left / apart, torch.zeros_like(left)).masked_fill(~some_left, 1.0)
    if multioutput == "raw_values":
        return scores
    return scores.mean() if multioutput == "uniform_average" else (whole / whole.sum() * scores).sum()


class ExplainedShare(PairMetric, abstract=True):
    """Base of R² and explained variance.

    Args:
        multioutput: ``"raw_values"``, ``"uniform_average"`` or ``"variance_weighted"``.
        num_outputs: the number of outputs; None to take it from the first batch, which every process needs.
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
    """R²: 1 minus the squared errors relative to the targets' spread.

    With fewer than two samples it is NaN on a GPU; on the CPU, where the check costs no wait, ``compute``
    raises ValueError, and warns if there are too few samples to adjust for the regressors.

    Args:
        adjusted: the number of independent regressors to adjust for; no adjustment with too few samples.
    """

    torchmetrics_file = "r2"
    torchmetrics_slots = (
        ("sum_squared_error", "target_squared"),
        ("sum_error", "target"),
        ("residual", "error_squared"),
        ("total", "seen", "int64"),
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
        number_seen, left = state["seen"], state["error_squared"]
        spread = state["target_squared"] - state["target"] ** 2 / number_seen
        some_left, some_spread = ~(left.abs() <= 1e-4), ~(spread.abs() <= 1e-4)  # NaN counts as nonzero
        score = explained_share(left, spread, some_left, some_spread, self.multioutput)
        if is_readable_on_host(number_seen):
            self._check_number_of_samples(int(number_seen))
        if self.adjusted:
            room = number_seen - self.adjusted - 1
            score = torch.where(room > 0, 1 - (1 - score) * (number_seen - 1) / room.clamp(min=1), score)
        return score.masked_fill(number_seen < 2, torch.nan).to(self.dtype)

    def _check_number_of_samples(self, number_seen: int) -> None:
        """Raise or warn, on the CPU, if there are too few samples."""
        if number_seen < 2:
            raise ValueError("Needs at least two samples to calculate r2 score.")
        if self.adjusted and self.adjusted >= number_seen - 1:
            reason = (
                "Division by zero"
                if self.adjusted == number_seen - 1
                else "More independent regressions than data points"
            )
            warn(f"{reason} in adjusted r2 score. Falls back to standard r2 score.")


class ExplainedVariance(ExplainedShare):
    """1 minus the errors' variance relative to the targets' variance."""

    torchmetrics_file = "explained_variance"
    torchmetrics_slots = (
        ("sum_error", "error", "negative"),
        ("sum_squared_error", "error_squared"),
        ("sum_target", "target"),
        ("sum_squared_target", "target_squared"),
        ("num_obs", "seen"),
    )
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    def __init__(
        self, multioutput: str = "uniform_average", num_outputs: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(multioutput, num_outputs, **kwargs)

    def value(self) -> Tensor:
        state = self.moments.state
        number_seen = state["seen"]
        left = state["error_squared"] / number_seen - (state["error"] / number_seen) ** 2
        variance = state["target_squared"] / number_seen - (state["target"] / number_seen) ** 2
        return explained_share(left, variance, left != 0, variance != 0, self.multioutput).to(self.dtype)


class RelativeSquaredError(PairMetric):
    """The squared errors relative to the targets' spread, averaged over `num_outputs` outputs.

    Args:
        squared: False for the root.
    """

    torchmetrics_file = "rse"
    torchmetrics_slots = (
        ("sum_squared_error", "target_squared", "row"),
        ("sum_error", "target", "row"),
        ("residual", "error_squared", "row"),
        ("total", "seen", "int64"),
    )
    is_differentiable = True
    higher_is_better = False
    moments: ErrorMoments

    def __init__(self, num_outputs: int = 1, squared: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_outputs = check_outputs(num_outputs, NUM_OUTPUTS_MESSAGE)
        self.squared = squared
        self.use("moments", ErrorMoments(num_outputs))

    def value(self) -> Tensor:
        state = self.moments.state
        spread = state["target_squared"] - state["target"] ** 2 / state["seen"]
        share = state["error_squared"] / spread.clamp(min=torch.finfo(self.dtype).eps)
        return (share if self.squared else share.sqrt()).mean().to(self.dtype)
