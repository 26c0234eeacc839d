"""How much of the targets' variance predictions account for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.metric import Metric
from gapless.metrics.regression.errors import difference, pair
from gapless.metrics.statistic import Slot, Statistic

MULTIOUTPUT = ("raw_values", "uniform_average", "variance_weighted")
PARTS = ("target", "target_squared", "error", "error_squared")


class ErrorMoments(Statistic):
    """Sums and sums of squares of targets and errors, per output, in float64.

    The number of outputs is that of the first batch, unless it is given.
    """

    def __init__(self, outputs: int | None) -> None:
        self.outputs = outputs
        super().__init__((outputs,), self._slots(outputs), checked=False)

    def _slots(self, outputs: int | None) -> dict[str, Slot]:
        shape = () if outputs in (None, 1) else (outputs,)
        return {"seen": Slot(), **{name: Slot(shape, torch.float64) for name in PARTS}}

    def count(self, batch: Batch) -> None:
        target = batch.derive(pair)[1]
        if target.dim() > 2:
            raise ValueError(
                "Expected both prediction and target to be 1D or 2D tensors,"
                f" but received tensors with dimension {target.shape}"
            )
        if self.outputs is None:
            self._fix(1 if target.dim() < 2 or target.shape[1] == 1 else target.shape[1])
        wide = self.state["target"].dtype
        target, error = target.to(wide), batch.derive(difference).to(wide)
        shape = self.state["target"].shape
        for name, value in zip(PARTS, (target, target**2, error, error**2), strict=True):
            self.state[name].add_(value.sum(0).reshape(shape))
        self.state["seen"].add_(target.shape[0])

    def load(self, saved: dict[str, Tensor]) -> None:
        if self.outputs is None and saved["target"].dim():
            self._fix(len(saved["target"]))
        super().load(saved)

    def _fix(self, outputs: int) -> None:
        self.outputs = outputs
        if outputs != 1:
            self.slots = {**self._slots(outputs), "clean": Slot()}
            self.state = self._allocate()
            self._scratch = None if self._whole is None else self.state
            self._whole = None if self._whole is None else self._allocate()


class ExplainedShare(Metric):
    """What R² and explained variance have in common."""

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

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch ``(N,)`` or ``(N, outputs)``."""
        self.observe(preds, target)

    def _over_outputs(self, scores: Tensor, variance: Tensor) -> Tensor:
        if self.multioutput == "raw_values":
            return scores
        if self.multioutput == "uniform_average":
            return scores.mean()
        return (variance / variance.sum() * scores).sum()


class R2Score(ExplainedShare):
    """R²: 1 minus the squared errors in shares of the targets' spread. NaN below two samples.

    Args:
        adjusted: the number of independent regressors to adjust for; no adjustment where there are too few
            samples.
        multioutput: ``"raw_values"``, ``"uniform_average"`` or ``"variance_weighted"``.
        num_outputs: the number of outputs, for processes that may have no data; None to see it in the first
            batch.
    """

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
        some_left, some_spread = left.abs() > 1e-4, spread.abs() > 1e-4
        scores = torch.where(some_spread, 1 - left / spread, torch.zeros_like(left))
        score = self._over_outputs(scores.masked_fill(~some_left, 1.0), spread)
        if self.adjusted:
            room = seen - self.adjusted - 1
            score = torch.where(room > 0, 1 - (1 - score) * (seen - 1) / room, score)
        return score.masked_fill(seen < 2, torch.nan).to(self.dtype)


class ExplainedVariance(ExplainedShare):
    """1 minus the errors' variance in shares of the targets' variance.

    Args:
        multioutput: ``"raw_values"``, ``"uniform_average"`` or ``"variance_weighted"``.
        num_outputs: the number of outputs, for processes that may have no data; None to see it in the first
            batch.
    """

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
        scores = torch.where(variance != 0, 1 - left / variance, torch.zeros_like(left))
        return self._over_outputs(scores.masked_fill(left == 0, 1.0), variance).to(self.dtype)
