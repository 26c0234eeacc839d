"""Detections matched with what is there, for all images together, as COCO's evaluation does.

The best detection of an image and class chooses first: what was not chosen, is not to be ignored, and
overlaps most. The first choices of all images are made together, then the second ones: the number of kernels
follows from the most detections that an image has of a class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from gapless.metrics.detection.masks import Intersections, places_of_pairs
from gapless.metrics.detection.objects import CROWD, DETECTION, IMAGE, Objects

MISSED, IGNORED, HIT = range(3)
"""What a detection is: matched with nothing, with what is to be ignored, or with what counts."""


class Detected(NamedTuple):
    """Detections, ``[D]``, image after image and class after class, the best of each first."""

    classes: Tensor
    rank: Tensor
    score: Tensor
    outcome: Tensor
    """``[D, T, A]`` of uint8."""
    elsewhere: Tensor
    """``[D, A]`` of bool: those of another size."""


class Evaluated(NamedTuple):
    """What follows from the table, before it is averaged."""

    detected: Detected
    truths: Tensor
    """``[K, A]``: how many there are that count."""
    labels: Tensor
    """``[K]``: the numbers of the classes."""


class Sorted(NamedTuple):
    """Rows of the table: image after image and class after class."""

    order: Tensor
    group: Tensor


class Sizes(NamedTuple):
    """What the host must know."""

    classes: int
    detections: int
    truths: int
    crowds: int
    pairs: list[int]
    """Of the detections of each rank, with what they may be matched with."""
    active: list[int]
    """How many detections of each rank may be matched with something."""


def evaluated(
    table: Objects, most: int, one_class: bool, intersections: Intersections | None = None
) -> Evaluated:
    """Match the `most` best detections of each image and class, at each threshold of IoU.

    **The host waits** once, to learn how much there is. With `one_class` labels do not count. What boxes have
    in common follows from these; of masks `intersections` says it.
    """
    kind, label, value, box = (table.read(name) for name in ("kind", "label", "value", "box"))
    rows = len(kind)
    classes, labels, count = numbered(label, kind == IMAGE)
    if one_class:
        classes = torch.zeros_like(classes)
    group = (kind == IMAGE).cumsum(0) * rows + classes
    is_truth = kind > DETECTION
    found = in_groups(group, kind == DETECTION, value.argsort(descending=True, stable=True))
    there = in_groups(group, is_truth, torch.arange(rows, device=kind.device))
    rank = rank_in_run(found.group)
    first = torch.searchsorted(there.group, found.group)
    number = torch.searchsorted(there.group, found.group, right=True) - first
    real = (kind == DETECTION)[found.order]
    number = torch.where(real & (rank < most), number, 0)
    several = (count, real.sum(), is_truth.sum(), (kind == CROWD).sum())
    sizes = learnt(several, number, rank, min(most, rows))
    first, number, rank = (one[: sizes.detections] for one in (first, number, rank))
    of_found, of_there = found.order[: sizes.detections], there.order[: sizes.truths]
    crowd, boxes = kind[of_there] == CROWD, (box[of_found], box[of_there])
    areas = [one[:, 2] * one[:, 3] for one in boxes]
    size = torch.where(value[of_there] > 0, value[of_there], areas[1])
    ignored = table.elsewhere(size) | crowd.unsqueeze(1)
    if intersections is None:
        common = partial(common_area, *boxes)
    else:
        begin, at = places_of_pairs(kind)
        common = partial(looked_up, intersections.read("both"), begin[of_found], at[of_there])
    pairs = paired(first, number, rank, sizes, Overlap(common, areas[0], areas[1], crowd))
    outcome = matched(pairs, sizes, ignored, crowd, table.least)
    elsewhere = table.elsewhere(areas[0])
    last = min(sizes.classes, 1) if one_class else sizes.classes
    truths = torch.zeros((last, ignored.shape[1]), dtype=torch.int64, device=kind.device)
    truths.index_add_(0, classes[of_there], (~ignored).to(torch.int64))
    kept = torch.where(rank < most, classes[of_found], last)
    detected = Detected(kept, rank, value[of_found], outcome, elsewhere)
    return Evaluated(detected, truths, labels[: sizes.classes])


def numbered(label: Tensor, none: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``[N]``: the class of each row, numbered from 0; the labels by number; how many there are."""
    order = label.argsort()
    order = order[none[order].to(torch.uint8).argsort(stable=True)]
    ordered, there = label[order], ~none[order]
    new = there.clone()
    new[1:] &= (ordered[1:] != ordered[:-1]) | ~there[:-1]
    number = (new.cumsum(0) - 1).clamp_(min=0)
    classes = torch.empty_like(label).scatter_(0, order, number)
    labels = torch.zeros_like(label).scatter_(0, number.masked_fill(~there, len(label) - 1), ordered)
    return classes, labels, new.sum()


def in_groups(group: Tensor, chosen: Tensor, order: Tensor) -> Sorted:
    """The rows that are `chosen`, group after group, in `order` within each; the others are behind them."""
    behind = torch.where(chosen, group, torch.iinfo(torch.int64).max)[order]
    ordered, again = behind.sort(stable=True)
    return Sorted(order[again], ordered)


def rank_in_run(ordered: Tensor) -> Tensor:
    """How many equal values are before each."""
    place = torch.arange(len(ordered), device=ordered.device)
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[1:] = ordered[1:] != ordered[:-1]
    return place - torch.where(new, place, 0).cummax(0).values


def learnt(several: tuple[Tensor, ...], number: Tensor, rank: Tensor, most: int) -> Sizes:
    """What the host must know, of which `several` are the first numbers; it waits for it."""
    at = rank.clamp(max=most - 1)
    by_rank = torch.zeros((2, most), dtype=torch.int64, device=rank.device)
    by_rank[0].index_add_(0, at, number)
    by_rank[1].index_add_(0, at, (number > 0).to(torch.int64))
    numbers = torch.cat((torch.stack(several), by_rank.flatten()))
    count, detections, truths, crowds, *rest = numbers.tolist()
    pairs, active = rest[:most], rest[most:]
    used = sum(one > 0 for one in active)  # a rank is there only where all better ones are
    return Sizes(count, detections, truths, crowds, pairs[:used], active[:used])


class Paired(NamedTuple):
    """Detections with what is there in the same image of the same class, ``[P]``, rank after rank.

    The pairs of a detection stand one after the other, that which overlaps most last.
    """

    detection: Tensor
    """Counted in the order of `detections`."""
    truth: Tensor
    iou: Tensor
    detections: Tensor
    total: int


class Overlap(NamedTuple):
    """How much detections overlap what is there."""

    common: Callable[[Tensor, Tensor], Tensor]
    found: Tensor
    """``[D]``: areas."""
    there: Tensor
    crowd: Tensor

    def of(self, one: Tensor, other: Tensor) -> Tensor:
        """``[P]``: the IoU of each of these pairs; with a crowd, the share of what was found."""
        both, area = self.common(one, other), self.found[one]
        union = torch.where(self.crowd[other], area, area + self.there[other] - both)
        return torch.where(both > 0, both / union, 0.0)


def paired(first: Tensor, number: Tensor, rank: Tensor, sizes: Sizes, overlap: Overlap) -> Paired:
    """Each detection with the `number` of truths from `first` on."""
    behind = rank.masked_fill(number == 0, len(sizes.active))
    chosen = behind.argsort(stable=True)[: sum(sizes.active)]
    number, total = number[chosen], sum(sizes.pairs)
    place = torch.arange(len(chosen), device=rank.device)
    of = torch.repeat_interleave(place, number, output_size=total)
    start = (number.cumsum(0) - number)[of]
    truth = first[chosen][of] + torch.arange(total, device=rank.device) - start
    iou = overlap.of(chosen[of], truth)
    order = iou.argsort(stable=True)
    order = order[of[order].argsort(stable=True)]
    return Paired(of, truth[order], iou[order], chosen, len(rank))


def common_area(found: Tensor, there: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """``[P]``: what boxes of `found`, those numbered `one`, have in common with those of `there`."""
    found, there = found[one], there[other]
    low = torch.maximum(found[:, :2], there[:, :2])
    high = torch.minimum(found[:, 2:] + found[:, :2], there[:, 2:] + there[:, :2])
    return (high - low).clamp_(min=0).prod(1)


def looked_up(common: Tensor, begin: Tensor, at: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """``[P]``: the same of masks, of which it is known."""
    return common[begin[one] + at[other]]


def matched(pairs: Paired, sizes: Sizes, ignored: Tensor, crowd: Tensor, least: Tensor) -> Tensor:
    """``[D, T, A]``: what each detection is, at each threshold and for each area."""
    device, total = ignored.device, len(pairs.truth)
    shape = (len(least), ignored.shape[1])
    free = torch.ones((len(crowd), *shape), dtype=torch.bool, device=device)
    best = torch.zeros((len(pairs.detections), *shape), dtype=torch.int32, device=device)
    closes = ~crowd[pairs.truth].reshape(-1, 1, 1) if sizes.crowds else None
    reached = (pairs.iou.unsqueeze(1) >= least).unsqueeze(2)
    # What counts goes before what is to be ignored, and then what overlaps most.
    place = torch.arange(1, total + 1, dtype=torch.int32, device=device).unsqueeze(1)
    worth = (place + (~ignored)[pairs.truth].to(torch.int32) * total).unsqueeze(1)
    for low, high in bounds(sizes.pairs):
        truth, of = pairs.truth[low:high], pairs.detection[low:high]
        before = free[truth]
        choice = torch.where(reached[low:high] & before, worth[low:high], -1)
        best.scatter_reduce_(0, of.reshape(-1, 1, 1).expand_as(choice), choice, "amax")
        taken = choice == best[of]
        if closes is not None:
            taken &= closes[low:high]
        free.index_copy_(0, truth, before ^ taken)
    whole = torch.zeros((pairs.total, *shape), dtype=torch.uint8, device=device)
    return whole.index_copy_(0, pairs.detections, (best > 0).to(torch.uint8) + (best > total))


def bounds(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Where each of so many begins and ends, one after the other."""
    edges = [0]
    for number in numbers:
        edges.append(edges[-1] + number)
    return list(pairwise(edges))
