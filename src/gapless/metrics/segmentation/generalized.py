"""Dice's coefficient of all classes together, rare ones weighted up."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.divide import divide
from gapless.metrics.segmentation.overlap import MaskCounts, MaskMetric, check_masks
from gapless.metrics.segmentation.pixels import SUPPORT, Masks
from gapless.metrics.statistic import Slot, State

WEIGHTS = ("square", "simple", "linear")


def generalized_dice(pixels: Tensor, weight_type: str, per_class: bool) -> Tensor:
    """``[N]``, or ``[N, C]`` per class, from pixels of `SUPPORT`.

    A class that a sample lacks has the largest weight that it has in the batch.
    """
    both, support, either = pixels.unbind(1)
    if weight_type == "linear":
        weights = torch.ones_like(support, dtype=torch.float32)
    else:
        weights = 1.0 / (support if weight_type == "simple" else support * support)
        absent = support == 0
        weights = torch.where(absent, weights.masked_fill(absent, 0.0).amax(0), weights)
    over, under = 2.0 * both * weights, either * weights
    return divide(over, under) if per_class else divide(over.sum(-1), under.sum(-1))


class GeneralizedScores(MaskCounts):
    """The sum of coefficients over samples."""

    rows: ClassVar = {"score": torch.float64}

    def __init__(self, masks: Masks, weight_type: str, per_class: bool) -> None:
        self.weight_type = weight_type
        self.per_class = per_class
        super().__init__(masks, SUPPORT, (weight_type, per_class))

    def sized(self, size: int | None) -> dict[str, Slot]:
        return {**super().sized(size), "seen": Slot()}

    def shape_of(self, classes: int) -> tuple[int, ...]:
        return (classes,) if self.per_class else ()

    def size_in(self, saved: State) -> int:
        return self.masks.classes

    def add(self, pixels: Tensor) -> None:
        if not len(pixels):
            return
        found = generalized_dice(pixels, self.weight_type, self.per_class)
        table = self.state["table"]
        table[0].add_(found.sum(0, dtype=table.dtype))
        self.state["seen"].add_(len(found))


class GeneralizedDiceScore(MaskMetric):
    """Dice's coefficient of all classes together, weighted by how rare they are, averaged over samples.

    Args:
        per_class: whether to give one value per class.
        weight_type: what a class weighs, by its pixels in the target: ``"square"`` the inverse of their
            square, ``"simple"`` their inverse, ``"linear"`` the same for all.
    """

    torchmetrics_file = "generalized_dice"
    torchmetrics_slots = "score:f1=score samples:f1=seen"
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
        check_masks(num_classes, include_background, input_format)
        if not isinstance(per_class, bool):
            raise ValueError(f"Expected argument `per_class` must be a boolean, but got {per_class}.")
        checks.one_of("weight_type", weight_type, WEIGHTS, stop=".", listed="'square', 'simple', 'linear'")
        self.num_classes = num_classes
        self.include_background = include_background
        self.per_class = per_class
        self.weight_type = weight_type
        self.input_format = input_format
        masks = Masks(num_classes, include_background, input_format)
        self.use("scores", GeneralizedScores(masks, weight_type, per_class))

    def value(self) -> Tensor:
        state = self.scores.state
        return torch.div(state["table"][0], state["seen"]).to(self.dtype)

    def each(self, pixels: Tensor) -> Tensor:
        """Dice's coefficient of all classes together per sample, ``[N]``, or per sample and class."""
        return generalized_dice(pixels, self.weight_type, self.per_class)
