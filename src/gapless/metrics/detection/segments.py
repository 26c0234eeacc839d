"""Segments of images, matched in tensors whose size does not depend on the number of segments."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.breadth import Breadth
from gapless.metrics.statistic import Slot, Statistic

IOU_SCALE = 2**32
"""The factor by which IoUs become integers, whose sums do not depend on the order."""


class Categories(NamedTuple):
    """The category numbers of countable things and uncountable stuffs, sorted."""

    things: tuple[int, ...]
    stuffs: tuple[int, ...]

    @property
    def number(self) -> int:
        return len(self.things) + len(self.stuffs)


class SegmentSides(NamedTuple):
    """The points of predictions, then those of targets, sorted by segment; ``[2 P]`` each.

    Segments are sorted by side (prediction or target), category and image.
    """

    segment: Tensor
    """For points in their original order: the index at which the point's segment begins."""
    category: Tensor
    is_first: Tensor
    visible: Tensor
    """The number of the segment's points that are not void on the other side."""
    is_mostly_void: Tensor
    """Whether most of the segment's points are void on the other side."""
    bounds: Tensor
    """``[2 (C + 1) + 1]``: the index at which each side and category begins."""


class SegmentCounts(Statistic):
    """Per category: the summed IoU of matched segments, and the counts of matched, wrong and missed ones.

    With `modified`, stuffs have the summed IoU of all overlapping segments and the number of target segments.
    """

    edges: Tensor
    places: Tensor

    def __init__(self, categories: Categories, allow_unknown: bool, modified: bool) -> None:
        self.categories = categories
        self.allow_unknown = allow_unknown
        self.modified = modified
        count = categories.number
        self.breadth = Breadth("category", count)
        with torch.device("cpu"):
            ids, places = torch.tensor([*categories.things, *categories.stuffs], dtype=torch.int64).sort()
            # Buckets alternate: numbers between two categories, then one category.
            edges = torch.stack((ids, ids + 1), 1).flatten()
            category_of_bucket = torch.full((2 * count + 1,), count)
            category_of_bucket[1::2] = places
        self.constants = {"edges": edges, "places": category_of_bucket}
        slots = {"iou": Slot((count,), torch.float64), "counts": Slot((3, count)), "strange": Slot()}
        super().__init__((categories, allow_unknown, modified), slots, checked=not allow_unknown)

    def count(self, batch: Batch) -> None:
        preds, target = batch.args
        if not preds.numel():
            return
        numbers = torch.stack((preds[..., 0], target[..., 0])).to(torch.int64)
        category = self.places[torch.bucketize(numbers, self.edges, right=True)]
        void = category == self.categories.number
        if not self.allow_unknown:
            self._count_unknown(void[0], preds)
        instance = torch.stack((preds[..., 1], target[..., 1]))
        instance.masked_fill_(category >= len(self.categories.things), 0)
        self._add(sort_into_segments(category, instance, void, self.categories.number))

    def _count_unknown(self, unknown: Tensor, preds: Tensor) -> None:
        """Count predictions of unknown categories; on the CPU, where reading is free, raise ValueError."""
        if preds.device.type == "cpu" and not torch.compiler.is_compiling() and bool(unknown.any()):
            raise ValueError(f"Unknown categories found: {preds[unknown]}")
        self.state["strange"].add_(unknown.sum())

    def complaint(self, count: int) -> str:
        return f"Detected {count} point{'s' * (count != 1)} of an unknown category in `preds`, taken for void"

    def _add(self, sides: SegmentSides) -> None:
        """Match the segments and add them to the state."""
        count, things, state = self.categories.number, len(self.categories.things), self.state
        pairs = match_segments(sides, count, things if self.modified else count)
        is_counted = torch.stack((sides.is_first, sides.is_first > sides.is_mostly_void))
        segments = sum_between(is_counted, sides.bounds).view(2, 2, count + 1)[..., :count]
        sums = sum_between(pairs.sums, pairs.bounds)
        state["iou"].add_(sums[0], alpha=1 / IOU_SCALE)
        table = torch.cat((sums[1:2], segments[1] - sums[2:]))
        if self.modified:
            table[:, things:] = 0
            table[0, things:] = segments[0, 1, things:]
        state["counts"].add_(table)


class SegmentPairs(NamedTuple):
    """Pairs of a predicted and a target segment that overlap.

    The rows of `sums`, ``[4, P]``, are the scaled IoU if it counts; whether the two match; and whether they
    match and the predicted, or the target one, is not mostly void on the other side.
    """

    sums: Tensor
    bounds: Tensor
    """``[C + 1]``: the index at which the pairs of each category begin."""


def sort_into_segments(category: Tensor, instance: Tensor, void: Tensor, count: int) -> SegmentSides:
    """Sort points into segments, by `category` and `instance`, ``[2, B, ...]`` of predictions and targets."""
    images = category.shape[1]
    offset = torch.arange(2 * images, device=category.device)
    offset[images:].add_(count * images)
    offset, category = offset.view(2, images, 1), category.view(2, images, -1)
    group = torch.add(offset, category, alpha=images).flatten()
    narrow, instance = instance.dtype.itemsize <= 4, instance.flatten().to(torch.int64)
    if narrow:
        key, order = (group * 2**32 + instance).sort()
        group, new = group[order], key[1:] != key[:-1]
    else:
        order = instance.argsort(stable=True)
        order = order[group[order].argsort(stable=True)]
        both = torch.stack((group, instance))[:, order]
        group, new = both[0], (both[:, 1:] != both[:, :-1]).any(0)
    first = run_starts(new)
    start, end = run_bounds(first.cumsum(0))
    area = end - start
    hidden = torch.nn.functional.pad(void.view(2, -1).flip(0).flatten()[order].cumsum(0), (1, 0))
    hidden = hidden[end] - hidden[start]
    edges = torch.arange(0, (2 * count + 3) * images, images, device=group.device)
    bounds = torch.searchsorted(group, edges)
    segment = torch.empty_like(start).scatter_(0, order, start)
    return SegmentSides(segment, category.flatten()[order], first, area - hidden, 2 * hidden > area, bounds)


def run_starts(new: Tensor) -> Tensor:
    """Mark where runs begin: at the first value, and where the following values are `new`."""
    return torch.nn.functional.pad(new, (1, 0), value=True)


def run_bounds(ordered: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for each of sorted values, start and end of its run of equal values."""
    return torch.searchsorted(ordered, ordered), torch.searchsorted(ordered, ordered, right=True)


def match_segments(sides: SegmentSides, count: int, first_unmatched: int) -> SegmentPairs:
    """Match overlapping segments; in categories from `first_unmatched` on they count without a match."""
    half = len(sides.segment) // 2
    key = torch.add(sides.segment[half:], sides.segment[:half], alpha=2 * half).sort().values
    pred, target = key.div(2 * half, rounding_mode="floor"), key.remainder(2 * half)
    start, end = run_bounds(key)
    both = end - start
    category = sides.category[pred]
    union = sides.visible[pred] + sides.visible[target] - both
    same = run_starts(key[1:] != key[:-1]) & (category == sides.category[target]) & (category < count)
    counts = matches = same & (2 * both > union)
    if first_unmatched < count:
        matches = matches & (category < first_unmatched)
        counts = matches | (same & (category >= first_unmatched))
    iou = (both * IOU_SCALE).div_(union.clamp_(min=1), rounding_mode="floor")
    is_visible_match = (matches > sides.is_mostly_void[segment] for segment in (pred, target))
    sums = torch.stack((iou * counts, matches, *is_visible_match))
    return SegmentPairs(sums, torch.searchsorted(category, torch.arange(count + 1, device=key.device)))


def sum_between(values: Tensor, bounds: Tensor) -> Tensor:
    """Return sums ``[Q, K]`` of integer `values`, ``[Q, P]``, between neighbouring `bounds`, ``[K + 1]``."""
    total = torch.nn.functional.pad(values.cumsum(1), (1, 0))[:, bounds]
    return total[:, 1:] - total[:, :-1]
