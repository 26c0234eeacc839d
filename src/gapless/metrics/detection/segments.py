"""Segments of images, matched in tensors whose size does not depend on how many there are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.statistic import Slot, Statistic

FIXED_POINT = 2**32
"""What an IoU is multiplied with to be added up as an integer, whose sum has no order."""


class Categories(NamedTuple):
    """The numbers of countable things and of uncountable stuffs, in order."""

    things: tuple[int, ...]
    stuffs: tuple[int, ...]

    @property
    def number(self) -> int:
        return len(self.things) + len(self.stuffs)


class Sides(NamedTuple):
    """Points of predictions, then those of targets, segment after segment; ``[2 P]`` each.

    Segments are in the order of their side, category and image. `segment` is the place where a point's
    segment begins, for points as they were given.
    """

    segment: Tensor
    category: Tensor
    first: Tensor
    visible: Tensor
    """Points of the segment that are not void on the other side."""
    mostly: Tensor
    """Whether most of its points are void there."""
    bounds: Tensor
    """``[2 (C + 1) + 1]``: where the segments of a side and category begin."""


class Segments(Statistic):
    """Per category: the sum of IoUs of matched segments, and how many were matched, were predicted for
    nothing, and were missed; with `modified`, for stuffs the sum over all that overlap, and the segments of
    the target.
    """

    edges: Tensor
    places: Tensor

    def __init__(self, categories: Categories, allow_unknown: bool, modified: bool) -> None:
        self.categories = categories
        self.allow_unknown = allow_unknown
        self.modified = modified
        count = categories.number
        with torch.device("cpu"):
            ids, places = torch.tensor([*categories.things, *categories.stuffs], dtype=torch.int64).sort()
            # Between two numbers that follow each other lies what is no category, or the one of the first.
            edges = torch.stack((ids, ids + 1), 1).flatten()
            found = torch.full((2 * count + 1,), count)
            found[1::2] = places
        self.constants = {"edges": edges, "places": found}
        slots = {"iou": Slot((count,), torch.float64), "counts": Slot((3, count)), "strange": Slot()}
        super().__init__((categories, allow_unknown, modified), slots, checked=not allow_unknown)

    def count(self, batch: Batch) -> None:
        preds, target = batch.args
        if not preds.numel():
            return
        given = torch.stack((preds[..., 0], target[..., 0])).to(torch.int64)
        category = self.places[torch.bucketize(given, self.edges, right=True)]
        void = category == self.categories.number
        if not self.allow_unknown:
            self._tell_unknown(void[0], preds)
        instance = torch.stack((preds[..., 1], target[..., 1]))
        instance.masked_fill_(category >= len(self.categories.things), 0)
        self._add(sorted_sides(category, instance, void, self.categories.number))

    def _tell_unknown(self, unknown: Tensor, preds: Tensor) -> None:
        """Count predictions of no category; raise ValueError where looking is free."""
        if preds.device.type == "cpu" and not torch.compiler.is_compiling() and bool(unknown.any()):
            raise ValueError(f"Unknown categories found: {preds[unknown]}")
        self.state["strange"].add_(unknown.sum())

    def complaint(self, count: int) -> str:
        return f"Detected {count} point{'s' * (count != 1)} of an unknown category in `preds`, taken for void"

    def _add(self, sides: Sides) -> None:
        count, things, state = self.categories.number, len(self.categories.things), self.state
        pairs = matched(sides, count, things if self.modified else count)
        seen = torch.stack((sides.first, sides.first > sides.mostly))
        segments = within(seen, sides.bounds).view(2, 2, count + 1)[..., :count]
        found = within(pairs.sums, pairs.bounds)
        state["iou"].add_(found[0], alpha=1 / FIXED_POINT)
        table = torch.cat((found[1:2], segments[1] - found[2:]))
        if self.modified:
            table[:, things:] = 0
            table[0, things:] = segments[0, 1, things:]
        state["counts"].add_(table)


class Pairs(NamedTuple):
    """Of pairs of a predicted and a true segment that overlap, ``[4, P]``: the IoU where it counts, whether
    they match, and whether they do and the predicted, or the true one, is not mostly void on the other side.
    """

    sums: Tensor
    bounds: Tensor
    """``[C + 1]``: where the pairs of a category begin."""


def sorted_sides(category: Tensor, instance: Tensor, void: Tensor, count: int) -> Sides:
    """`category` and `instance`, ``[2, B, ...]`` of predictions and targets, as segments."""
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
    first = begun(new)
    start, end = run_of(first.cumsum(0))
    area = end - start
    hidden = torch.nn.functional.pad(void.view(2, -1).flip(0).flatten()[order].cumsum(0), (1, 0))
    hidden = hidden[end] - hidden[start]
    edges = torch.arange(0, (2 * count + 3) * images, images, device=group.device)
    bounds = torch.searchsorted(group, edges)
    segment = torch.empty_like(start).scatter_(0, order, start)
    return Sides(segment, category.flatten()[order], first, area - hidden, 2 * hidden > area, bounds)


def begun(new: Tensor) -> Tensor:
    """Where a run begins: at the first place, and where the next values are `new`."""
    return torch.nn.functional.pad(new, (1, 0), value=True)


def run_of(ordered: Tensor) -> tuple[Tensor, Tensor]:
    """Where the run of equal values begins in which each value is, and where the next one does."""
    return torch.searchsorted(ordered, ordered), torch.searchsorted(ordered, ordered, right=True)


def matched(sides: Sides, count: int, plain: int) -> Pairs:
    """Segments that lie over each other; those of a category from `plain` on need not match to count."""
    half = len(sides.segment) // 2
    key = torch.add(sides.segment[half:], sides.segment[:half], alpha=2 * half).sort().values
    pred, target = key.div(2 * half, rounding_mode="floor"), key.remainder(2 * half)
    start, end = run_of(key)
    both = end - start
    category = sides.category[pred]
    union = sides.visible[pred] + sides.visible[target] - both
    same = begun(key[1:] != key[:-1]) & (category == sides.category[target]) & (category < count)
    counts = matches = same & (2 * both > union)
    if plain < count:
        matches = matches & (category < plain)
        counts = matches | (same & (category >= plain))
    iou = (both * FIXED_POINT).div_(union.clamp_(min=1), rounding_mode="floor")
    seen = (matches > sides.mostly[one] for one in (pred, target))
    sums = torch.stack((iou * counts, matches, *seen))
    return Pairs(sums, torch.searchsorted(category, torch.arange(count + 1, device=key.device)))


def within(values: Tensor, bounds: Tensor) -> Tensor:
    """``[Q, K]``: the sums of `values`, ``[Q, P]`` of integers, from each of `bounds`, ``[K + 1]``, to the
    next.
    """
    total = torch.nn.functional.pad(values.cumsum(1), (1, 0))[:, bounds]
    return total[:, 1:] - total[:, :-1]
