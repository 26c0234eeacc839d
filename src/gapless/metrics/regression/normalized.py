"""Root mean squared error relative to the targets' scale."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.breadth import Breadth
from gapless.metrics.reduced import Sum
from gapless.metrics.regression.errors import MeanError, check_outputs, float_pair, squared_error
from gapless.metrics.statistic import HIGHEST, LOWEST, Slot, Statistic

SCALES = ("mean", "range", "std", "l2")
"""The scales that `normalization` can name."""


class TargetScale(Statistic):
    """Sums or extremes of the targets that their scale is computed from, per output, in float64."""

    def __init__(self, scale: str, outputs: int) -> None:
        self.scale = scale
        self.outputs = outputs
        self.breadth = Breadth("output", outputs)
        shape = () if outputs == 1 else (outputs,)
        total = Slot(shape, torch.float64)
        slots = {
            "mean": {"sum": total},
            "range": {
                "low": Slot(shape, torch.float64, HIGHEST, "min"),
                "high": Slot(shape, torch.float64, LOWEST, "max"),
            },
            "std": {"sum": total, "squares": total},
            "l2": {"squares": total},
        }[scale]
        super().__init__((scale, outputs), slots, checked=False)

    def count(self, batch: Batch) -> None:
        target = batch.derive(float_pair)[1]
        target = target.reshape(-1) if self.outputs == 1 else target
        if not target.numel():
            return
        state = self.state
        wide = target.to(next(iter(state.values())).dtype)
        if self.scale == "range":
            torch.minimum(state["low"], wide.amin(0), out=state["low"])
            torch.maximum(state["high"], wide.amax(0), out=state["high"])
        if "sum" in state:
            state["sum"].add_(wide.sum(0))
        if "squares" in state:
            state["squares"].add_((wide * wide).sum(0))

    def value(self, number: Tensor) -> Tensor:
        """Return the scale of the targets, whose number is `number`."""
        state = self.state
        if self.scale == "range":
            return state["high"] - state["low"]
        if self.scale == "l2":
            return state["squares"].sqrt()
        mean = state["sum"] / number
        return mean if self.scale == "mean" else (state["squares"] / number - mean**2).clamp(min=0).sqrt()


class NormalizedRootMeanSquaredError(MeanError):
    """The root mean squared error relative to the targets' scale; one value per output.

    Args:
        normalization: the scale: the targets' ``"mean"``, their ``"range"``, their standard deviation
            (``"std"``), or their Euclidean norm (``"l2"``).
    """

    torchmetrics_file = "nrmse"
    scale: TargetScale

    def __init__(self, normalization: str = "mean", num_outputs: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if normalization not in SCALES:
            raise ValueError(
                "Argument `normalization` should be either 'mean', 'range', 'std' or 'l2', "
                f"but got {normalization}"
            )
        self.normalization = normalization
        self.num_outputs = check_outputs(num_outputs)
        self.use("errors", Sum(squared_error, outputs=num_outputs))
        self.use("scale", TargetScale(normalization, num_outputs))

    def value(self) -> Tensor:
        return (self.errors.reduced().sqrt() / self.scale.value(self.errors.state["seen"])).to(self.dtype)
