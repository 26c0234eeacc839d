"""The generalized Dice score, which weights rare classes up."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.divide import divide
from gapless.metrics.segmentation.overlap import MaskCounts, MaskMetric, check_mask_options
from gapless.metrics.segmentation.pixels import SUPPORT, MaskFormat
from gapless.metrics.statistic import Slot, State

WEIGHTS = ("square", "simple", "linear")
"""Accepted values of `weight_type`."""


def generalized_dice(pixels: Tensor, weight_type: str, per_class: bool) -> Tensor:
    """Return the score of each sample, ``[N]``, or per class ``[N, C]``, from pixels of kind `SUPPORT`.

    A class that a sample lacks gets the largest weight that it has in the batch.
    """
    both, support, either = pixels.unbind(1)
    if weight_type == "linear":
        weights = torch.ones_like(support, dtype=torch.float32)
    else:
        weights = 1.0 / (support if weight_type == "simple" else support * support)
        absent = support == 0
        weights = torch.where(absent, weights.masked_fill(absent, 0.0).amax(0), weights)
    numerator, denominator = 2.0 * both * weights, either * weights
    return divide(numerator, denominator) if per_class else divide(numerator.sum(-1), denominator.sum(-1))


class GeneralizedScores(MaskCounts):
    """The sum of generalized Dice scores over samples."""

    rows: ClassVar = {"score": torch.float64}

    def __init__(self, masks: MaskFormat, weight_type: str, per_class: bool) -> None:
        self.weight_type = weight_type
        self.per_class = per_class
        super().__init__(masks, SUPPORT, (weight_type, per_class))

    def slots_for(self, size: int | None) -> dict[str, Slot]:
        return {**super().slots_for(size), "seen": Slot()}

    def row_shape(self, classes: int) -> tuple[int, ...]:
        return (classes,) if self.per_class else ()

    def size_in(self, saved: State) -> int:
        return self.masks.classes

    def add(self, pixels: Tensor) -> None:
        if not len(pixels):
            return
        scores = generalized_dice(pixels, self.weight_type, self.per_class)
        table = self.state["table"]
        table[0].add_(scores.sum(0, dtype=table.dtype))
        self.state["seen"].add_(len(scores))


class GeneralizedDiceScore(MaskMetric):
    """The Dice score of all classes together, weighted by their rarity, averaged over samples.

    Args:
        per_class: whether to return one value per class.
        weight_type: the weight of a class, from its number of target pixels: ``"square"`` for the inverse of
            its square, ``"simple"`` for its inverse, ``"linear"`` for equal weights.
    """

    torchmetrics_file = "generalized_dice"
    torchmetrics_slots = (("score", "score", "row"), ("samples", "seen", "row"))
    scores: GeneralizedScores

    def __init__(
        self,
        num_classes: int,
        include_background: bool = True,
        per_class: bool = False,
        weight_type: str = "square",
        input_format: str = "one-hot",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_mask_options(num_classes, include_background, input_format)
        if not isinstance(per_class, bool):
            raise ValueError(f"Expected argument `per_class` must be a boolean, but got {per_class}.")
        checks.check_one_of(
            "weight_type", weight_type, WEIGHTS, stop=".", listed="'square', 'simple', 'linear'"
        )
        self.num_classes = num_classes
        self.include_background = include_background
        self.per_class = per_class
        self.weight_type = weight_type
        self.input_format = input_format
        masks = MaskFormat(num_classes, include_background, input_format)
        self.use("scores", GeneralizedScores(masks, weight_type, per_class))

    def value(self) -> Tensor:
        state = self.scores.state
        return torch.div(state["table"][0], state["seen"]).to(self.dtype)

    def score_samples(self, pixels: Tensor) -> Tensor:
        """Return the generalized Dice score per sample, ``[N]``, or per sample and class."""
        return generalized_dice(pixels, self.weight_type, self.per_class)
