"""How masks of classes lie over each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.divide import divide
from gapless.metrics.faults import check_after
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


class Overlaps(NamedTuple):
    """Pixels per sample and class, ``[N, C]`` of int64 each: in both masks, in either (those in both twice)
    and in the target; and how many indices were no class (None where nothing was given as indices).
    """

    both: Tensor
    either: Tensor
    in_target: Tensor
    strange: Tensor | None


def overlaps(batch: Batch, masks: Masks) -> Overlaps:
    """How the masks of `batch` lie over each other."""
    check_shapes(batch, masks)
    preds, target = (indices(one, masks, batch) for one in batch.args)
    if preds is not None and target is not None:
        same_shape(batch, preds, target)
        found = by_index(preds, target, masks, [is_index(one, masks, batch) for one in batch.args])
    else:
        found = by_channel(batch, masks)
    if masks.counted == masks.classes:
        return found
    both, either, in_target = (one[:, 1:] for one in found[:3])
    return Overlaps(both, either, in_target, found.strange)


def check_shapes(batch: Batch, masks: Masks) -> None:
    """Raises RuntimeError or ValueError for masks that do not fit each other, or the format."""
    preds, target = batch.args
    if masks.format == "mixed" and abs(preds.dim() - target.dim()) != 1:
        raise RuntimeError(
            "Predictions and targets are expected to have the same shape, "
            f"got {preds.shape} and {target.shape}."
        )


def same_shape(batch: Batch, preds: Tensor, target: Tensor) -> None:
    """Raises RuntimeError unless both masks, in their common form, have the same shape."""
    if preds.shape != target.shape:
        raise RuntimeError(
            "Predictions and targets are expected to have the same shape, "
            f"but got {batch.args[0].shape} and {batch.args[1].shape}."
        )


def is_index(mask: Tensor, masks: Masks, batch: Batch) -> bool:
    """Whether `mask` holds class indices."""
    dims = max(one.dim() for one in batch.args)
    return masks.format == "index" or (masks.format == "mixed" and mask.dim() < dims)


def indices(mask: Tensor, masks: Masks, batch: Batch) -> Tensor | None:
    """The class of each pixel, ``(N, ...)``; None where a pixel may have several, or none."""
    if is_index(mask, masks, batch):
        mask = one_image(mask) if masks.single and masks.format == "index" else mask
        if mask.dim() < 2:
            raise ValueError(
                f"Expected both `preds` and `target` to have at least 3 dimensions, but got {mask.dim() + 1}."
            )
        return mask
    return argmax(mask, 1) if mask.is_floating_point() and mask.dim() > 2 else None


def by_index(preds: Tensor, target: Tensor, masks: Masks, given: Sequence[bool]) -> Overlaps:
    """The same from the class of each pixel; `given` says of which of both what is no class is counted.

    Pairs of classes are counted, with a place before and one behind the classes for what is none: nothing is
    larger than the masks, and no pixel is compared with every class.
    """
    samples, classes, width = len(preds), masks.classes, masks.classes + 2
    each = width * width
    first = torch.arange(width + 1, width + 1 + samples * each, each, device=preds.device)
    pairs = first.reshape(-1, *[1] * (preds.dim() - 1)) + preds.clamp(-1, classes)
    pairs.add_(target.clamp(-1, classes), alpha=width)
    table = counted(pairs, samples * each).view(samples, width, width)
    sides = (table.sum(1), table.sum(2))  # of predictions, of targets
    either = sides[0] + sides[1]
    both, in_either, in_target = (
        one[:, 1 : classes + 1] for one in (table.diagonal(0, 1, 2), either, sides[1])
    )
    strange = None
    if any(given):
        chosen = either if all(given) else sides[given.index(True)]
        strange = chosen[:, :: classes + 1].sum()
    return Overlaps(both, in_either, in_target, strange)


def counted(places: Tensor, bins: int) -> Tensor:
    """How often each of the numbers below `bins` occurs in `places`; on a CUDA device block by block."""
    plain = not torch.compiler.is_compiling()
    if places.device.type == "cpu" and plain:
        return torch.bincount(places.flatten(), minlength=bins)
    if places.device.type == "cuda" and plain and not torch.are_deterministic_algorithms_enabled():
        return torch.histc(places, bins, 0, bins)
    flat = places.flatten()
    found = torch.zeros(bins, dtype=torch.int64, device=places.device)
    return found.scatter_add_(0, flat, torch.ones_like(flat))


def by_channel(batch: Batch, masks: Masks) -> Overlaps:
    """The same from a channel per class."""
    preds, target = (channels(one, masks, batch) for one in batch.args)
    same_shape(batch, preds, target)
    if preds.dim() < 3:
        raise ValueError(
            f"Expected both `preds` and `target` to have at least 3 dimensions, but got {preds.dim()}."
        )
    both, in_preds, in_target = (one.flatten(2).sum(2) for one in (preds & target, preds, target))
    return Overlaps(both, in_preds + in_target, in_target, strange_pixels(batch, masks))


def channels(mask: Tensor, masks: Masks, batch: Batch) -> Tensor:
    """``(N, C, ...)`` of bool."""
    given = is_index(mask, masks, batch)
    if not given and not mask.is_floating_point():
        return mask if mask.dtype == torch.bool else mask != 0
    index = one_image(mask) if masks.single and masks.format == "index" else mask
    index = index if given else argmax(mask, 1)
    classes = torch.arange(masks.classes, device=mask.device).reshape(-1, *[1] * (index.dim() - 1))
    return index.unsqueeze(1) == classes


def one_image(index: Tensor) -> Tensor:
    """Class indices ``(N, ...)``, of which those of one or two dimensions are one image, with `N` of 1."""
    return index.reshape(*[1] * (3 - index.dim()), *index.shape)


def strange_pixels(batch: Batch, masks: Masks) -> Tensor | None:
    """How many indices are no class; None where there are no indices."""
    given = [one for one in batch.args if is_index(one, masks, batch)]
    if not given:
        return None
    found = [((one < 0) | (one >= masks.classes)).sum() for one in given]
    return found[0] if len(found) == 1 else found[0] + found[1]


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

    def add(self, both: Tensor, either: Tensor, in_target: Tensor) -> None:
        """Add pixels, ``[N, C]`` each, as :func:`overlaps` gives them."""
        raise NotImplementedError

    def count(self, batch: Batch) -> None:
        if self.size is None:
            self.show(channels_of(*batch.args))
        several = batch.args[0].dim() > 2
        masks = self.masks._replace(single=False) if several else self.masks
        found = batch.derive(overlaps, masks)
        self.add(*found[:3])
        if found.strange is not None:
            self.state["strange"].add_(found.strange)

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

    def add(self, both: Tensor, either: Tensor, in_target: Tensor) -> None:
        state = self.state
        if self.average == "iou":
            score, there = both / (either - both), either
        else:
            score, there = half_dice(both, either, in_target, self.average)
        state["score"].add_(score.nansum(0, dtype=state["score"].dtype), alpha=1 + (self.average != "iou"))
        state["there"].add_(there.count_nonzero(0))


class Pixels(MaskCounts):
    """Per class the pixels in both masks, in the prediction and the target, and in the target."""

    def __init__(self, masks: Masks) -> None:
        super().__init__(masks, ())

    def slots_of(self, classes: int) -> dict[str, Slot]:
        return {name: Slot((classes,)) for name in ("both", "either", "support")}

    def add(self, both: Tensor, either: Tensor, in_target: Tensor) -> None:
        state = self.state
        state["both"].add_(both.sum(0))
        state["either"].add_(either.sum(0))
        state["support"].add_(in_target.sum(0))


def dice(both: Tensor, either: Tensor, support: Tensor, average: str | None) -> Tensor:
    """Dice's coefficient over the last dimension, the classes; NaN where there is nothing."""
    return 2 * half_dice(both, either, support, average)[0]


def half_dice(both: Tensor, either: Tensor, support: Tensor, average: str | None) -> tuple[Tensor, Tensor]:
    """Half of it, and numbers that are 0 where it is NaN."""
    if average == "micro":
        whole = either.sum(-1)
        return both.sum(-1) / whole, whole
    score = both / either  # NaN where it is 0 of 0
    if average == "macro":
        there = either.count_nonzero(-1)
        return score.nansum(-1) / there, there
    if average == "weighted":
        there = either.sum(-1)
        weights = support / support.sum(-1, keepdim=True)
        return (score * weights).nansum(-1).masked_fill(there == 0, torch.nan), there
    return score, either


class MaskMetric(Metric, abstract=True):
    """A metric of masks.

    Args:
        num_classes: how many classes there are.
        include_background: whether class 0 counts.
        input_format: ``"one-hot"`` for a channel per class, ``"index"`` for class indices, ``"mixed"`` for
            one of each.
    """

    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    is_differentiable = False
    higher_is_better = True

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch of masks ``(N, C, ...)`` or class indices ``(N, ...)``."""
        self.observe(preds, target)

    def of_samples(self, preds: Tensor, target: Tensor) -> Tensor:
        """What the function of the metric gives for one batch, by :meth:`each`."""
        (part,) = self._parts
        assert isinstance(part, MaskCounts)
        if part.size is None:
            part.show(channels_of(preds, target))
        *found, strange = overlaps(Batch((preds, target), preds.device), part.masks)
        if strange is not None:
            part.state["strange"].add_(strange)
            check_after([(part, part.names)])
        return self.each(*found)

    def each(self, both: Tensor, either: Tensor, in_target: Tensor) -> Tensor:
        """The values of samples from their pixels, as :func:`overlaps` gives them."""
        raise NotImplementedError


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
        per_class: whether to give one value per class, -1 for one that never occurs.
    """

    torchmetrics_file = "mean_iou"
    torchmetrics_slots = "score:f=score num_batches:f=there"
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

    def each(self, both: Tensor, either: Tensor, in_target: Tensor) -> Tensor:
        """Intersection over union per sample, ``[N]``, or per sample and class, -1 where it is not there."""
        union = either - both
        scores = divide(both, union, -1.0 if self.per_class else 0.0)
        return scores if self.per_class else scores.sum(-1) / (union > 0).sum(-1)


class DiceScore(MaskMetric):
    """Dice's coefficient.

    Args:
        average: ``"micro"``, ``"macro"``, ``"weighted"`` (by support), or ``"none"`` or None for a value per
            class.
        aggregation_level: ``"samplewise"`` for the mean over samples, ``"global"`` to count all pixels as one
            sample.
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
        several = "['micro', 'macro', 'weighted', 'none'] or None"
        checks.one_of("average", average, checks.AVERAGES, stop=".", listed=several)
        levels = ("samplewise", "global")
        checks.one_of("aggregation_level", aggregation_level, levels, listed="`samplewise`, `global`")
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

    def each(self, both: Tensor, either: Tensor, in_target: Tensor) -> Tensor:
        """Dice's coefficient per sample, or of all pixels as one sample where the level is ``"global"``."""
        if self.aggregation_level == "global":
            both, either, in_target = (one.sum(0, keepdim=True) for one in (both, either, in_target))
        return dice(both, either, in_target, self.average)
