"""How masks of classes lie over each other."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.divide import share
from gapless.metrics.faults import check_after
from gapless.metrics.metric import Metric
from gapless.metrics.segmentation.pixels import (
    EITHER,
    SUPPORT,
    UNION,
    Grid,
    Masks,
    Overlaps,
    overlaps,
    places_of,
)
from gapless.metrics.sized import SizedByData
from gapless.metrics.statistic import Slot, State

FORMATS = ("one-hot", "index", "mixed")


class MaskCounts(SizedByData):
    """What is counted of masks. Without a number of classes the channels of the first batch are as many."""

    places: Tensor
    low: Tensor
    high: Tensor
    rows: ClassVar[dict[str, torch.dtype]] = {}
    """What the rows of the slot ``"table"`` are in a checkpoint."""

    def __init__(self, masks: Masks, what: str, config: tuple[Any, ...], known: bool = True) -> None:
        self.masks = masks
        self.what = what
        checked = masks.format != "one-hot"
        super().__init__(masks.classes if known else None, (masks, what, *config), checked)

    def sized(self, size: int | None) -> dict[str, Slot]:
        self.masks = self.masks._replace(classes=size or 1)
        self.constants = {"places": places_of(self.masks, self.what), "low": -1, "high": self.masks.classes}
        self.shape = self.shape_of(self.masks.counted)
        wide = torch.float64 if torch.float64 in self.rows.values() else torch.int64
        return {"table": Slot((len(self.rows), *self.shape), wide), "strange": Slot()}

    def shape_of(self, classes: int) -> tuple[int, ...]:
        """The shape of a row of the table, for so many classes that count."""
        return (classes,)

    def add(self, pixels: Tensor) -> None:
        """Add pixels as :func:`overlaps` gives them."""
        raise NotImplementedError

    def show(self, size: int) -> None:
        super().show(size)
        self._make_constants()

    def overlaps_of(self, batch: Batch) -> Overlaps:
        """What `what` says of the masks of `batch`."""
        if self.size is None:
            self.show(channels_of(*batch.args))
        several = batch.args[0].dim() > 2
        masks = self.masks._replace(single=False) if several else self.masks
        grid = Grid(self.places, self.low, self.high)
        found: Overlaps = batch.derive(overlaps, masks, self.what, grid=grid)
        return found

    def count(self, batch: Batch) -> None:
        found = self.overlaps_of(batch)
        self.add(found.pixels)
        if found.strange is not None:
            self.state["strange"].add_(found.strange)

    def complaint(self, count: int) -> str:
        return f"Detected {count} pixel{'s' * (count != 1)} outside the classes 0 to {self.masks.classes - 1}"

    @property
    def saved_slots(self) -> dict[str, Slot]:
        rows = {name: Slot(self.shape, dtype) for name, dtype in self.rows.items()}
        return {**rows, **{name: slot for name, slot in self.slots.items() if name != "table"}}

    def decoded(self, state: State) -> State:
        rows = state["table"].unbind(-1 - len(self.shape))
        found = {name: row.to(self.rows[name]) for name, row in zip(self.rows, rows, strict=True)}
        return {**found, **{name: value for name, value in state.items() if name != "table"}}

    def encoded(self, saved: State) -> State:
        rows = [saved[name].to(self.state["table"].dtype) for name in self.rows]
        table = torch.stack(rows, -1 - len(self.shape))
        return {"table": table, **{name: value for name, value in saved.items() if name not in self.rows}}


class SampleScores(MaskCounts):
    """Sums over samples of a score, and of whether it was there: per class, or averaged over classes."""

    rows: ClassVar = {"score": torch.float64, "there": torch.int64}

    def __init__(self, masks: Masks, average: str | None, known: bool = True) -> None:
        self.average = average
        what = {"iou": UNION, "weighted": SUPPORT}.get(str(average), EITHER)
        super().__init__(masks, what, (average,), known)

    def shape_of(self, classes: int) -> tuple[int, ...]:
        return (classes,) if self.average in ("iou", "none", None) else ()

    def size_in(self, saved: State) -> int:
        counted = saved["score"].numel()
        return 0 if counted == 1 else counted + (not self.masks.background)

    def add(self, pixels: Tensor) -> None:
        table = self.state["table"]
        table.add_(scores(pixels, self.average).nansum(0, dtype=table.dtype))


class Pixels(MaskCounts):
    """Per class the pixels in both masks, in the target, and in the prediction and the target."""

    rows: ClassVar = {"both": torch.int64, "support": torch.int64, "either": torch.int64}

    def __init__(self, masks: Masks) -> None:
        super().__init__(masks._replace(whole=True), SUPPORT, ())

    def size_in(self, saved: State) -> int:
        return self.masks.classes

    def add(self, pixels: Tensor) -> None:
        self.state["table"].add_(pixels[0])


def scores(pixels: Tensor, average: str | None) -> Tensor:
    """``[N, 2]``, or ``[N, 2, C]`` where `average` leaves classes apart: a score, and 1; both are NaN where
    there is nothing.

    `pixels` are those of `SUPPORT` for ``"weighted"``; else any two numbers whose quotient is the score.
    """
    if average == "weighted":
        both, support, either = pixels.unbind(1)
        weights = support / support.sum(-1, keepdim=True)
        mean = (2 * both / either * weights).nansum(-1)
        absent = (either.sum(-1) == 0).unsqueeze(1)
        return torch.stack((mean, torch.ones_like(mean)), 1).masked_fill(absent, torch.nan)
    if average == "micro":
        pixels = pixels.sum(-1)
    found = pixels / pixels[:, 1:]
    if average == "macro":
        total = found.nansum(-1)
        return total / total[:, 1:]
    return found


def dice(pixels: Tensor, average: str | None) -> Tensor:
    """Dice's coefficient from pixels of `SUPPORT`; NaN where there is nothing."""
    if average == "weighted":
        return scores(pixels, average)[:, 0]
    return 2 * scores(pixels[:, ::2], average)[:, 0]


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
        found = part.overlaps_of(Batch((preds, target), preds.device))
        if found.strange is not None:
            part.state["strange"].add_(found.strange)
            check_after([(part, part.names)])
        return self.each(found.pixels)

    def each(self, pixels: Tensor) -> Tensor:
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
        table = self.scores.state["table"]
        score, there = table if self.per_class else table.sum(-1)
        return (share(score, there, -1.0) if self.per_class else score / there).to(self.dtype)

    def each(self, pixels: Tensor) -> Tensor:
        """Intersection over union per sample, ``[N]``, or per sample and class, -1 where it is not there."""
        if self.per_class:
            return share(pixels[:, 0], pixels[:, 1], -1.0)
        return scores(pixels, "macro")[:, 0]


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
        table = self.counts.state["table"]
        if self.aggregation_level == "global":
            return dice(table.unsqueeze(0), self.average)[0].to(self.dtype)
        return torch.div(table[0], table[1]).to(self.dtype)

    def each(self, pixels: Tensor) -> Tensor:
        """Dice's coefficient per sample, or of all pixels as one sample where the level is ``"global"``."""
        if self.aggregation_level == "global":
            return dice(pixels, self.average)
        return scores(pixels, self.average)[:, 0]
