"""Segments of images, matched in tensors whose size does not depend on how many there are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.statistic import Slot, Statistic

FIXED_POINT = 2.0**32
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
    last: Tensor
    area: Tensor
    hidden: Tensor
    bounds: Tensor
    """``[2 (C + 1) + 1]``: where the segments of a side and category begin."""


class Segments(Statistic):
    """Per category: the sum of IoUs of matched segments, and how many were matched, were predicted for
    nothing, and were missed; with `modified`, for stuffs the sum over all that overlap, and the segments of
    the target.
    """

    ids: Tensor
    places: Tensor

    def __init__(self, categories: Categories, allow_unknown: bool, modified: bool) -> None:
        self.categories = categories
        self.allow_unknown = allow_unknown
        self.modified = modified
        with torch.device("cpu"):
            ids, places = torch.tensor([*categories.things, *categories.stuffs], dtype=torch.int64).sort()
        self.constants = {"ids": ids, "places": places}
        count = categories.number
        slots = {"iou": Slot((count,), torch.float64), "counts": Slot((3, count)), "strange": Slot()}
        super().__init__((categories, allow_unknown, modified), slots, checked=not allow_unknown)

    def count(self, batch: Batch) -> None:
        preds, target = batch.args
        if not preds.numel():
            return
        category, unknown = self._category(torch.stack((preds[..., 0], target[..., 0])))
        if not self.allow_unknown:
            self._tell_unknown(unknown[0], preds)
        instance = torch.stack((preds[..., 1], target[..., 1]))
        things = len(self.categories.things)
        sides = sorted_sides(category, instance.masked_fill(category >= things, 0), self.categories.number)
        self._add(sides)

    def _category(self, given: Tensor) -> tuple[Tensor, Tensor]:
        """The place of each category, that behind the last for what is none; and what is none."""
        given = given.to(torch.int64)
        at = torch.searchsorted(self.ids, given).clamp_(max=self.categories.number - 1)
        unknown = self.ids[at] != given
        return self.places[at].masked_fill_(unknown, self.categories.number), unknown

    def _tell_unknown(self, unknown: Tensor, preds: Tensor) -> None:
        """Count predictions of no category; raise ValueError where looking is free."""
        if preds.device.type == "cpu" and not torch.compiler.is_compiling() and bool(unknown.any()):
            raise ValueError(f"Unknown categories found: {preds[unknown]}")
        self.state["strange"].add_(unknown.sum())

    def complaint(self, count: int) -> str:
        return f"Detected {count} point{'s' * (count != 1)} of an unknown category in `preds`, taken for void"

    def _add(self, sides: Sides) -> None:
        count, things, state = self.categories.number, len(self.categories.things), self.state
        plain = count if not self.modified else things
        pairs = matched(sides, count, plain, state["iou"].dtype)
        seen = sides.last & (2 * sides.hidden <= sides.area)
        between = sides.bounds.view(-1)
        segments = within(torch.stack((sides.last, seen)), between).view(2, 2, count + 1)[..., :count]
        found = within(pairs.sums, pairs.bounds)
        state["iou"].add_(found[0].to(state["iou"].dtype) / FIXED_POINT)
        table = torch.stack((found[1], segments[1, 0] - found[2], segments[1, 1] - found[3]))
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


def sorted_sides(category: Tensor, instance: Tensor, count: int) -> Sides:
    """`category` and `instance`, ``[2, B, ...]`` of predictions and targets, as segments; `count` is void."""
    images, half = category.shape[1], category[0].numel()
    place = torch.arange(2 * half, device=category.device)
    image = place.remainder(half).div_(half // images, rounding_mode="floor")
    narrow, category = instance.dtype.itemsize <= 4, category.flatten()
    group = category.add(place.ge(half), alpha=count + 1).mul_(images).add_(image)
    instance = instance.flatten().to(torch.int64)
    if narrow:
        key, order = (group * 2**32 + instance).sort()
        new = key[1:] != key[:-1]
    else:
        order = instance.argsort(stable=True)
        order = order[group[order].argsort(stable=True)]
        one, other = group[order], instance[order]
        new = (one[1:] != one[:-1]) | (other[1:] != other[:-1])
    first, last = (torch.ones_like(place, dtype=torch.bool) for _ in range(2))
    first[1:], last[:-1] = new, new
    start = torch.where(first, place, 0).cummax(0).values
    end = torch.where(last, place, 2 * half).flip(0).cummin(0).values.flip(0)
    void = (category == count)[(order + half).remainder(2 * half)]
    hidden = void.cumsum(0)
    hidden = hidden[end] - hidden[start] + void[start]
    edges = torch.arange(2 * (count + 1) + 1, device=place.device) * images
    bounds = torch.searchsorted(group[order], edges)
    segment = torch.empty_like(start).scatter_(0, order, start)
    return Sides(segment, category[order], last, end - start + 1, hidden, bounds)


def matched(sides: Sides, count: int, plain: int, wide: torch.dtype) -> Pairs:
    """Segments that lie over each other; those of a category from `plain` on need not match to count."""
    half = len(sides.segment) // 2
    key = (sides.segment[:half] * (2 * half) + sides.segment[half:]).sort().values
    pred, target = key.div(2 * half, rounding_mode="floor"), key.remainder(2 * half)
    place = torch.arange(half, device=key.device)
    first, last = (torch.ones_like(place, dtype=torch.bool) for _ in range(2))
    first[1:] = key[1:] != key[:-1]
    last[:-1] = first[1:]
    both = place - torch.where(first, place, 0).cummax(0).values + 1
    category, visible = sides.category[pred], sides.area - sides.hidden
    union = visible[pred] + visible[target] - both
    same = last & (category == sides.category[target]) & (category < count)
    matches = same & (2 * both > union) & (category < plain)
    iou = (both.to(wide) / union * FIXED_POINT).round().to(torch.int64)
    mostly = 2 * sides.hidden > sides.area
    counts = matches | (same & (category >= plain))
    sums = torch.stack(
        (torch.where(counts, iou, 0), matches, matches & ~mostly[pred], matches & ~mostly[target])
    )
    return Pairs(sums, torch.searchsorted(category, torch.arange(count + 1, device=key.device)))


def within(values: Tensor, bounds: Tensor) -> Tensor:
    """``[Q, K]``: the sums of `values`, ``[Q, P]`` of integers, from each of `bounds`, ``[K + 1]``, to the
    next.
    """
    total = torch.nn.functional.pad(values.cumsum(1), (1, 0))[:, bounds]
    return total[:, 1:] - total[:, :-1]
