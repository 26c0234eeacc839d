"""Correlation of predictions and targets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.breadth import Breadth
from gapless.metrics.host import is_readable_on_host
from gapless.metrics.metric import Metric
from gapless.metrics.reduced import UNREDUCED, Every, Sum
from gapless.metrics.regression.errors import (
    NUM_OUTPUTS_MESSAGE,
    PairMetric,
    check_columns,
    check_outputs,
    float_pair,
)
from gapless.metrics.statistic import Slot, State, Statistic

SUMS = ("mean_x", "mean_y", "square_x", "square_y", "product")
"""Slots of :class:`Comoments` beside the number of samples."""


class Comoments(Statistic):
    """Means, squared deviations and their product, of predictions (x) and targets (y), in float64.

    Deviations are taken from each batch's own mean and merged by Chan's formula, which avoids cancellation if
    means are large compared to the deviations.
    """

    def __init__(self, outputs: int) -> None:
        self.outputs = outputs
        self.breadth = Breadth("output", outputs)
        self.shape = () if outputs == 1 else (outputs,)
        slots = {name: Slot(self.shape, torch.float64, reduction="fold") for name in ("seen", *SUMS)}
        super().__init__((outputs,), slots, checked=False)

    def count(self, batch: Batch) -> None:
        preds, target = batch.derive(float_pair)
        if preds.dim() == 1:  # A single column is used for every output.
            preds, target = (values.unsqueeze(1).expand(-1, self.outputs) for values in (preds, target))
        check_columns(preds, target, self.outputs)
        if not preds.numel():
            return
        wide = self.state["seen"].dtype
        x, y = (values.to(wide).reshape(-1, *self.shape) for values in (preds, target))
        mean_x, mean_y = x.mean(0), y.mean(0)
        x, y = x - mean_x, y - mean_y
        batch_state = {
            "seen": torch.full(self.shape, float(len(x)), dtype=wide, device=self.device),
            "mean_x": mean_x,
            "mean_y": mean_y,
            "square_x": (x * x).sum(0),
            "square_y": (y * y).sum(0),
            "product": (x * y).sum(0),
        }
        self.merge_folded(self.state, batch_state)

    def merge_folded(self, into: State, other: State) -> None:
        number = into["seen"] + other["seen"]
        share = other["seen"] / number.clamp(min=1)
        cross_weight = into["seen"] * share
        dx, dy = other["mean_x"] - into["mean_x"], other["mean_y"] - into["mean_y"]
        into["square_x"].add_(other["square_x"] + dx * dx * cross_weight)
        into["square_y"].add_(other["square_y"] + dy * dy * cross_weight)
        into["product"].add_(other["product"] + dx * dy * cross_weight)
        into["mean_x"].add_(dx * share)
        into["mean_y"].add_(dy * share)
        into["seen"].copy_(number)


class Correlation(PairMetric, abstract=True):
    """A metric computed from means and deviations of predictions and targets."""

    torchmetrics_slots = (
        ("mean_x", "mean_x", "row"),
        ("mean_y", "mean_y", "row"),
        ("var_x", "square_x", "row"),
        ("var_y", "square_y", "row"),
        ("corr_xy", "product", "row"),
        ("n_total", "seen", "row"),
    )

    is_differentiable = True
    higher_is_better: bool | None = None
    comoments: Comoments

    def __init__(self, num_outputs: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_outputs = check_outputs(num_outputs, NUM_OUTPUTS_MESSAGE)
        self.use("comoments", Comoments(num_outputs))


class PearsonCorrCoef(Correlation):
    """Pearson's correlation, for each of `num_outputs` outputs.

    NaN if predictions or targets do not vary; on the CPU, where the check costs no wait, ``compute`` warns.
    """

    torchmetrics_file = "pearson"
    plot_lower_bound = -1.0
    plot_upper_bound = 1.0

    def value(self) -> Tensor:
        state = self.comoments.state
        root = state["square_x"].sqrt() * state["square_y"].sqrt()
        if is_readable_on_host(root) and bool((root == 0).any()):
            checks.warn(
                "The variance of predictions or target is close to zero: the correlation coefficient is NaN"
            )
        return (state["product"] / root).clamp(-1.0, 1.0).to(self.dtype)


class ConcordanceCorrCoef(Correlation):
    """Lin's concordance, for each of `num_outputs` outputs: agreement with the line of equal values."""

    torchmetrics_file = "concordance"
    plot_lower_bound = -1.0
    plot_upper_bound = 1.0
    higher_is_better: bool | None = True

    def value(self) -> Tensor:
        state = self.comoments.state
        number = state["seen"] - 1
        apart = (state["mean_x"] - state["mean_y"]) ** 2
        spread = (state["square_x"] + state["square_y"]) / number
        concordance = 2 * state["product"] / number / (spread + apart)
        flat = (state["square_x"] == 0) | (state["square_y"] == 0)
        return concordance.masked_fill(flat, torch.nan).to(self.dtype)


def similarities(batch: Batch) -> Tensor:
    """Return the cosine of the angle between each prediction and its target, ``(N,)``."""
    preds, target = batch.derive(float_pair)
    if preds.dim() != 2:
        raise ValueError(
            "Expected input to cosine similarity to be 2D tensors of shape `[N,D]` where `N` is the number "
            f"of samples and `D` is the number of dimensions, but got tensor of shape {preds.shape}"
        )
    return (preds * target).sum(-1) / (preds.norm(dim=-1) * target.norm(dim=-1))


class CosineSimilarity(Metric):
    """The cosine of the angle between predictions and targets.

    Args:
        reduction: ``"sum"``, ``"mean"``, or ``"none"`` or None for one value per sample.
        capacity: for ``"none"``, the fixed number of samples to store.
    """

    torchmetrics_file = "cosine_similarity"
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    is_differentiable = True
    higher_is_better = True
    similar: Sum | Every

    def __init__(self, reduction: str | None = "sum", capacity: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        checks.check_one_of("reduction", reduction, ("sum", "mean", "none", None), comma="")
        self.reduction = reduction
        column = ("similarity", ((), torch.float32))
        every = Every(similarities, (), capacity, column) if reduction in UNREDUCED else None
        self.use("similar", every or Sum(similarities))

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch of vectors ``(N, D)``."""
        self.observe(preds, target)

    def value(self) -> Tensor:
        return self.similar.reduced(self.reduction).to(self.dtype)
