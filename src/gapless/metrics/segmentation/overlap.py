"""How masks of classes lie over each other."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.divide import divide
from gapless.metrics.host import argmax
from gapless.metrics.metric import Metric
from gapless.metrics.sized import SizedByData
from gapless.metrics.statistic import Slot, State

FORMATS = ("one-hot", "index", "mixed")


class Masks(NamedTuple):
    """How masks are given: one channel per class (``"one-hot"``), class indices (``"index"``), or each.

    With `single` indices of one or two dimensions are those of one image.
    """

    classes: int
    background: bool
    format: str
    single: bool = False

    @property
    def counted(self) -> int:
        """Classes that count."""
        return self.classes if self.background or self.classes == 1 else self.classes - 1


def overlaps(batch: Batch, masks: Masks) -> tuple[Tensor, Tensor, Tensor]:
    """Per sample and class, in pixels: in both, in the prediction, in the target.

    ``[N, C]`` of int64 each.
    """
    if masks.format == "mixed" and abs(batch.args[0].dim() - batch.args[1].dim()) != 1:
        raise RuntimeError(
            "Predictions and targets are expected to have the same shape, "
            f"got {batch.args[0].shape} and {batch.args[1].shape}."
        )
    preds, target = (channels(one, masks, batch) for one in batch.args)
    if preds.shape != target.shape:
        raise RuntimeError(
            "Predictions and targets are expected to have the same shape, "
            f"but got {batch.args[0].shape} and {batch.args[1].shape}."
        )
    if preds.dim() < 3:
        raise ValueError(
            f"Expected both `preds` and `target` to have at least 3 dimensions, but got {preds.dim()}."
        )
    if masks.counted != masks.classes:
        preds, target = preds[:, 1:], target[:, 1:]
    found = (one.flatten(2).sum(2) for one in (preds & target, preds, target))
    return tuple(found)  # type: ignore[return-value]


def channels(mask: Tensor, masks: Masks, batch: Batch) -> Tensor:
    """``(N, C, ...)`` of bool."""
    indices = masks.format == "index" or (
        masks.format == "mixed" and mask.dim() < max(one.dim() for one in batch.args)
    )
    if not indices and not mask.is_floating_point():
        return mask if mask.dtype == torch.bool else mask != 0
    index = one_image(mask) if masks.single and masks.format == "index" else mask
    index = index if indices else argmax(mask, 1)
    classes = torch.arange(masks.classes, device=mask.device).reshape(-1, *[1] * (index.dim() - 1))
    return index.unsqueeze(1) == classes


def one_image(index: Tensor) -> Tensor:
    """Class indices ``(N, ...)``, of which those of one or two dimensions are one image, with `N` of 1."""
    return index.reshape(*[1] * (3 - index.dim()), *index.shape)


def strange_pixels(batch: Batch, masks: Masks) -> Tensor | None:
    """How many indices are no class; None where there are no indices."""
    found = None
    for one in batch.args:
        indices = masks.format == "index" or (
            masks.format == "mixed" and one.dim() < max(other.dim() for other in batch.args)
        )
        if indices:
            strange = ((one < 0) | (one >= masks.classes)).sum()
            found = strange if found is None else found + strange
    return found


class MaskCounts(SizedByData):
    """What is counted of masks. Without a number of classes the channels of the first batch are as many."""

    def __init__(self, masks: Masks, config: tuple[Any, ...], known: bool = True) -> None:
        self.masks = masks
        super().__init__(masks.classes if known else None, (masks, *config))

    def sized(self, size: int | None) -> dict[str, Slot]:
        self.masks = self.masks._replace(classes=size or 1)
        return {**self.slots_of(self.masks.counted), "strange": Slot()}

    def slots_of(self, classes: int) -> dict[str, Slot]:
        """The slots for so many classes that count."""
        raise NotImplementedError

    def add(self, both: Tensor, in_preds: Tensor, in_target: Tensor) -> None:
        """Add pixels, ``[N, C]`` each, as :func:`overlaps` gives them."""
        raise NotImplementedError

    def count(self, batch: Batch) -> None:
        if self.size is None:
            self.show(channels_of(*batch.args))
        several = batch.args[0].dim() > 2
        masks = self.masks._replace(single=False) if several else self.masks
        self.add(*batch.derive(overlaps, masks))
        strange = batch.derive(strange_pixels, masks)
        if strange is not None:
            self.state["strange"].add_(strange)

    def complaint(self, count: int) -> str:
        return f"Detected {count} pixel{'s' * (count != 1)} outside the classes 0 to {self.masks.classes - 1}"


class SampleScores(MaskCounts):
    """Sums over samples of a score, and of whether it was there: per class, or averaged over classes."""

    def __init__(self, masks: Masks, average: str | None, known: bool = True) -> None:
        self.average = average
        super().__init__(masks, (average,), known)

    def slots_of(self, classes: int) -> dict[str, Slot]:
        shape = (classes,) if self.average in ("iou", "none", None) else ()
        return {"score": Slot(shape, torch.float64), "there": Slot(shape)}

    def size_in(self, saved: State) -> int:
        counted = saved["score"].numel()
        return 0 if counted == 1 else counted + (not self.masks.background)

    def add(self, both: Tensor, in_preds: Tensor, in_target: Tensor) -> None:
        either, state = in_preds + in_target, self.state
        score = (
            divide(both, either - both, torch.nan)
            if self.average == "iou"
            else dice(both, either, in_target, self.average)
        )
        state["score"].add_(score.nansum(0, dtype=state["score"].dtype))
        state["there"].add_((~score.isnan()).sum(0))


class Pixels(MaskCounts):
    """Per class the pixels in both masks, in the prediction and the target, and in the target."""

    def __init__(self, masks: Masks) -> None:
        super().__init__(masks, ())

    def slots_of(self, classes: int) -> dict[str, Slot]:
        return {name: Slot((classes,)) for name in ("both", "either", "support")}

    def add(self, both: Tensor, in_preds: Tensor, in_target: Tensor) -> None:
        state = self.state
        state["both"].add_(both.sum(0))
        state["either"].add_((in_preds + in_target).sum(0))
        state["support"].add_(in_target.sum(0))


def dice(both: Tensor, either: Tensor, support: Tensor, average: str | None) -> Tensor:
    """Dice's coefficient over the last dimension, the classes; NaN where there is nothing."""
    if average == "micro":
        return divide(2 * both.sum(-1), either.sum(-1), torch.nan)
    score = divide(2 * both, either, torch.nan)
    if average == "macro":
        return score.nanmean(-1)
    if average == "weighted":
        weights = divide(support, support.sum(-1, keepdim=True), torch.nan)
        return (score * weights).nansum(-1).masked_fill(score.isnan().all(-1), torch.nan)
    return score


class MaskMetric(Metric, abstract=True):
    """A metric of masks."""

    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    is_differentiable = False
    higher_is_better = True

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch of masks ``(N, C, ...)`` or class indices ``(N, ...)``."""
        self.observe(preds, target)


def check_masks(num_classes: Any, include_background: Any, input_format: Any, optional: bool = False) -> None:
    """Raises ValueError for what cannot be; `optional` says that there may be no number of classes."""
    if optional and num_classes is None and input_format == "index":
        raise ValueError("Argument `num_classes` must be provided when `input_format` is 'index'.")
    if not (optional and num_classes is None) and (not isinstance(num_classes, int) or num_classes <= 0):
        what = "`None` or a positive integer" if optional else "a positive integer"
        raise ValueError(f"Expected argument `num_classes` must be {what}, but got {num_classes}.")
    if not isinstance(include_background, bool):
        raise ValueError(
            f"Expected argument `include_background` must be a boolean, but got {include_background}."
        )
    checks.one_of("input_format", input_format, FORMATS, stop=".", listed="'one-hot', 'index', 'mixed'")


def check_dice(average: Any, aggregation_level: Any) -> None:
    """Raises ValueError for an average or a level that there is not."""
    several = "['micro', 'macro', 'weighted', 'none'] or None"
    checks.one_of("average", average, checks.AVERAGES, stop=".", listed=several)
    levels = ("samplewise", "global")
    checks.one_of("aggregation_level", aggregation_level, levels, listed="`samplewise`, `global`")


def channels_of(preds: Tensor, target: Tensor) -> int:
    """How many classes masks of one channel per class have, where either may hold class indices.

    Raises:
        IndexError: there are no channels.
        ValueError: there are none in them.
    """
    channelled = preds if preds.dim() >= target.dim() else target
    if channelled.dim() < 2:
        raise IndexError(f"Cannot determine `num_classes` from `preds` tensor: {preds}.")
    if not channelled.shape[1]:
        raise ValueError("Expected argument `num_classes` to be a positive integer, but got 0.")
    return channelled.shape[1]


class MeanIoU(MaskMetric):
    """Intersection over union, averaged over the samples in which a class occurs, and over classes.

    Args:
        num_classes: how many classes there are; None to see it in the first batch of channels.
        include_background: whether class 0 counts.
        per_class: whether to give one value per class, -1 for one that never occurs.
        input_format: ``"one-hot"`` for a channel per class, ``"index"`` for class indices, ``"mixed"`` for
            one of each.
    """

    torchmetrics_file = "mean_iou"
    scores: SampleScores

    def __init__(
        self,
        num_classes: int | None = None,
        include_background: bool = True,
        per_class: bool = False,
        input_format: str = "one-hot",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_masks(num_classes, include_background, input_format, optional=True)
        if not isinstance(per_class, bool):
            raise ValueError(f"Expected argument `per_class` must be a boolean, but got {per_class}.")
        self.include_background = include_background
        self.per_class = per_class
        self.input_format = input_format
        masks = Masks(num_classes or 1, include_background, input_format, single=True)
        self.use("scores", SampleScores(masks, "iou", known=num_classes is not None))

    @property
    def num_classes(self) -> int | None:
        """How many classes there are; None where no batch has shown it yet."""
        return self.scores.size

    def value(self) -> Tensor:
        score, there = self.scores.state["score"], self.scores.state["there"]
        if self.per_class:
            return divide(score, there, -1.0).to(self.dtype)
        return torch.div(score.sum(), there.sum()).to(self.dtype)


class DiceScore(MaskMetric):
    """Dice's coefficient.

    Args:
        num_classes: how many classes there are.
        include_background: whether class 0 counts.
        average: ``"micro"``, ``"macro"``, ``"weighted"`` (by support), or ``"none"`` or None for a value per
            class.
        aggregation_level: ``"samplewise"`` for the mean over samples, ``"global"`` to count all pixels as one
            sample.
        input_format: ``"one-hot"`` for a channel per class, ``"index"`` for class indices, ``"mixed"`` for
            one of each.
    """

    torchmetrics_file = "dice"
    counts: MaskCounts

    def __init__(
        self,
        num_classes: int,
        include_background: bool = True,
        average: str | None = "macro",
        aggregation_level: str = "samplewise",
        input_format: str = "one-hot",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_masks(num_classes, include_background, input_format)
        check_dice(average, aggregation_level)
        self.num_classes = num_classes
        self.include_background = include_background
        self.input_format = input_format
        self.average = average
        self.aggregation_level = aggregation_level
        masks = Masks(num_classes, include_background, input_format)
        everything = aggregation_level == "global"
        self.use("counts", Pixels(masks) if everything else SampleScores(masks, average))

    def value(self) -> Tensor:
        state = self.counts.state
        if self.aggregation_level == "global":
            return dice(state["both"], state["either"], state["support"], self.average).to(self.dtype)
        return torch.div(state["score"], state["there"]).to(self.dtype)
