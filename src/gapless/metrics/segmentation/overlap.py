"""Metrics of how predicted and target masks overlap: mean IoU and the Dice score."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.breadth import Breadth
from gapless.metrics.divide import share
from gapless.metrics.faults import check_after_update
from gapless.metrics.metric import Metric
from gapless.metrics.segmentation.pixels import (
    EITHER,
    SUPPORT,
    UNION,
    HistogramInputs,
    MaskFormat,
    PixelOverlaps,
    count_overlaps,
    histogram_offsets,
)
from gapless.metrics.sized import SizedByData
from gapless.metrics.statistic import Slot, State

INPUT_FORMATS = ("one-hot", "index", "mixed")
"""Accepted values of `input_format`."""


class MaskCounts(SizedByData):
    """Counts of mask pixels. Without a number of classes the first batch sets it, by its channels."""

    places: Tensor
    low: Tensor
    high: Tensor
    rows: ClassVar[dict[str, torch.dtype]] = {}
    """Names and dtypes of the rows of the slot ``"table"`` in a checkpoint."""

    def __init__(self, masks: MaskFormat, kind: str, config: tuple[Any, ...], has_size: bool = True) -> None:
        self.masks = masks
        self.kind = kind
        checked = masks.format != "one-hot"
        super().__init__(masks.classes if has_size else None, (masks, kind, *config), checked)

    def slots_for(self, size: int | None) -> dict[str, Slot]:
        """Return the slots for `size` classes (None before the first batch: one), and set the constants that
        depend on the number."""
        self.masks = self.masks._replace(classes=size or 1)
        self.breadth = Breadth("class", self.masks.classes)
        self.constants = {
            "places": histogram_offsets(self.masks, self.kind),
            "low": -1,
            "high": self.masks.classes,
        }
        self.shape = self.row_shape(self.masks.counted_classes)
        wide = torch.float64 if torch.float64 in self.rows.values() else torch.int64
        return {"table": Slot((len(self.rows), *self.shape), wide), "strange": Slot()}

    def row_shape(self, classes: int) -> tuple[int, ...]:
        """Return the shape of a table row, for `classes` classes that count."""
        return (classes,)

    def add(self, pixels: Tensor) -> None:
        """Add the pixels of a batch, as :func:`count_overlaps` returns them."""
        raise NotImplementedError

    def fix_size(self, size: int) -> None:
        super().fix_size(size)
        self._make_constants()

    def count_overlaps(self, batch: Batch) -> PixelOverlaps:
        """Count the overlaps of the masks of `batch`, as `self.kind` says; sets the size if it is unknown."""
        if self.size is None:
            self.fix_size(class_count_of(*batch.args))
        has_channels = batch.args[0].dim() > 2
        masks = self.masks._replace(single=False) if has_channels else self.masks
        grid = HistogramInputs(self.places, self.low, self.high)
        overlaps: PixelOverlaps = batch.derive(count_overlaps, masks, self.kind, grid=grid)
        return overlaps

    def count(self, batch: Batch) -> None:
        overlaps = self.count_overlaps(batch)
        self.add(overlaps.pixels)
        if overlaps.invalid is not None:
            self.state["strange"].add_(overlaps.invalid)

    def complaint(self, count: int) -> str:
        return f"Detected {count} pixel{'s' * (count != 1)} outside the classes 0 to {self.masks.classes - 1}"

    @property
    def saved_slots(self) -> dict[str, Slot]:
        rows = {name: Slot(self.shape, dtype) for name, dtype in self.rows.items()}
        return {**rows, **{name: slot for name, slot in self.slots.items() if name != "table"}}

    def decode(self, state: State) -> State:
        rows = state["table"].unbind(-1 - len(self.shape))
        decoded_rows = {name: row.to(self.rows[name]) for name, row in zip(self.rows, rows, strict=True)}
        return {**decoded_rows, **{name: value for name, value in state.items() if name != "table"}}

    def encode(self, saved: State) -> State:
        rows = [saved[name].to(self.state["table"].dtype) for name in self.rows]
        table = torch.stack(rows, -1 - len(self.shape))
        return {"table": table, **{name: value for name, value in saved.items() if name not in self.rows}}


class SampleScores(MaskCounts):
    """Sums over samples of a score, and of how often it was defined: per class, or averaged over classes."""

    rows: ClassVar = {"score": torch.float64, "there": torch.int64}

    def __init__(self, masks: MaskFormat, average: str | None, has_size: bool = True) -> None:
        self.average = average
        kind = {"iou": UNION, "weighted": SUPPORT}.get(str(average), EITHER)
        super().__init__(masks, kind, (average,), has_size)

    def row_shape(self, classes: int) -> tuple[int, ...]:
        return (classes,) if self.average in ("iou", "none", None) else ()

    def size_in(self, saved: State) -> int:
        counted = saved["score"].numel()
        return 0 if counted == 1 else counted + (not self.masks.background)

    def add(self, pixels: Tensor) -> None:
        table = self.state["table"]
        table.add_(scores_and_presence(pixels, self.average).nansum(0, dtype=table.dtype))


class PixelCounts(MaskCounts):
    """Per class, the pixels in both masks, in the target, and in prediction plus target."""

    rows: ClassVar = {"both": torch.int64, "support": torch.int64, "either": torch.int64}

    def __init__(self, masks: MaskFormat) -> None:
        super().__init__(masks._replace(whole=True), SUPPORT, ())

    def size_in(self, saved: State) -> int:
        return self.masks.classes

    def add(self, pixels: Tensor) -> None:
        self.state["table"].add_(pixels[0])


def scores_and_presence(pixels: Tensor, average: str | None) -> Tensor:
    """Return scores and ones, ``[N, 2]``, or per class ``[N, 2, C]``; both are NaN where undefined.

    `pixels` are of kind `SUPPORT` for ``"weighted"``; else any two numbers whose quotient is the score.
    """
    if average == "weighted":
        both, support, either = pixels.unbind(1)
        weights = support / support.sum(-1, keepdim=True)
        mean = (2 * both / either * weights).nansum(-1)
        absent = (either.sum(-1) == 0).unsqueeze(1)
        return torch.stack((mean, torch.ones_like(mean)), 1).masked_fill(absent, torch.nan)
    if average == "micro":
        pixels = pixels.sum(-1)
    quotients = pixels / pixels[:, 1:]
    if average == "macro":
        total = quotients.nansum(-1)
        return total / total[:, 1:]
    return quotients


def dice_scores(pixels: Tensor, average: str | None) -> Tensor:
    """Return the Dice score of each sample from pixels of kind `SUPPORT`; NaN for a class without pixels."""
    if average == "weighted":
        return scores_and_presence(pixels, average)[:, 0]
    return 2 * scores_and_presence(pixels[:, ::2], average)[:, 0]


class MaskMetric(Metric, abstract=True):
    """A metric of segmentation masks.

    Args:
        num_classes: the number of classes.
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

    def score_batch(self, preds: Tensor, target: Tensor) -> Tensor:
        """Return the scores of one batch without adding it; the metric's function calls this."""
        (statistic,) = self.all_statistics()
        assert isinstance(statistic, MaskCounts)
        overlaps = statistic.count_overlaps(Batch((preds, target), preds.device))
        if overlaps.invalid is not None:
            statistic.state["strange"].add_(overlaps.invalid)
            check_after_update([(statistic, statistic.names)])
        return self.score_samples(overlaps.pixels)

    def score_samples(self, pixels: Tensor) -> Tensor:
        """Return the scores of samples from their pixels, as :func:`count_overlaps` returns them."""
        raise NotImplementedError


def check_mask_options(
    num_classes: Any, include_background: Any, input_format: Any, optional: bool = False
) -> None:
    """Raise ValueError for invalid options; `num_classes` may be None if `optional`."""
    if optional and num_classes is None and input_format == "index":
        raise ValueError("Argument `num_classes` must be provided when `input_format` is 'index'.")
    if not (optional and num_classes is None) and (not isinstance(num_classes, int) or num_classes <= 0):
        expected = "`None` or a positive integer" if optional else "a positive integer"
        raise ValueError(f"Expected argument `num_classes` must be {expected}, but got {num_classes}.")
    if not isinstance(include_background, bool):
        raise ValueError(
            f"Expected argument `include_background` must be a boolean, but got {include_background}."
        )
    checks.check_one_of(
        "input_format", input_format, INPUT_FORMATS, stop=".", listed="'one-hot', 'index', 'mixed'"
    )


def class_count_of(preds: Tensor, target: Tensor) -> int:
    """Return the number of classes of one-hot masks, of which one may hold class indices instead.

    Raises:
        IndexError: neither mask has a channel dimension.
        ValueError: the channel dimension is empty.
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
        num_classes: the number of classes; None to take it from the channels of the first batch.
        per_class: whether to return one value per class, -1 for a class that never occurs.
    """

    torchmetrics_file = "mean_iou"
    torchmetrics_slots = (("score", "score"), ("num_batches", "there"))
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
        check_mask_options(num_classes, include_background, input_format, optional=True)
        if not isinstance(per_class, bool):
            raise ValueError(f"Expected argument `per_class` must be a boolean, but got {per_class}.")
        self.include_background = include_background
        self.per_class = per_class
        self.input_format = input_format
        masks = MaskFormat(num_classes or 1, include_background, input_format, single=True)
        self.use("scores", SampleScores(masks, "iou", has_size=num_classes is not None))

    @property
    def num_classes(self) -> int | None:
        """The number of classes; None until a batch has shown it."""
        return self.scores.size

    def value(self) -> Tensor:
        table = self.scores.state["table"]
        score, occurrences = table if self.per_class else table.sum(-1)
        return (share(score, occurrences, -1.0) if self.per_class else score / occurrences).to(self.dtype)

    def score_samples(self, pixels: Tensor) -> Tensor:
        """Return intersection over union per sample, ``[N]``, or per sample and class, -1 if undefined."""
        if self.per_class:
            return share(pixels[:, 0], pixels[:, 1], -1.0)
        return scores_and_presence(pixels, "macro")[:, 0]


class DiceScore(MaskMetric):
    """The Dice score.

    Args:
        average: ``"micro"``, ``"macro"``, ``"weighted"`` (by support), or ``"none"`` or None for a value per
            class.
        aggregation_level: ``"samplewise"`` for the mean over samples, ``"global"`` to treat all pixels as one
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
        check_mask_options(num_classes, include_background, input_format)
        listed = "['micro', 'macro', 'weighted', 'none'] or None"
        checks.check_one_of("average", average, checks.AVERAGES, stop=".", listed=listed)
        levels = ("samplewise", "global")
        checks.check_one_of("aggregation_level", aggregation_level, levels, listed="`samplewise`, `global`")
        self.num_classes = num_classes
        self.include_background = include_background
        self.input_format = input_format
        self.average = average
        self.aggregation_level = aggregation_level
        masks = MaskFormat(num_classes, include_background, input_format)
        is_global = aggregation_level == "global"
        self.use("counts", PixelCounts(masks) if is_global else SampleScores(masks, average))

    def value(self) -> Tensor:
        table = self.counts.state["table"]
        if self.aggregation_level == "global":
            return dice_scores(table.unsqueeze(0), self.average)[0].to(self.dtype)
        return torch.div(table[0], table[1]).to(self.dtype)

    def score_samples(self, pixels: Tensor) -> Tensor:
        """Return the Dice score per sample, or of all pixels as one sample if the level is ``"global"``."""
        if self.aggregation_level == "global":
            return dice_scores(pixels, self.average)
        return scores_and_presence(pixels, self.average)[:, 0]
