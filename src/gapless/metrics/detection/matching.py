"""Matches detections with ground truth in all images together, as COCO's evaluation does.

Within an image and class the detection with the highest score chooses first: the free ground truth with the
largest overlap, and one that counts before one that is ignored. The first choices of all images are made
together, then the second ones, so the number of kernels depends on the most detections of a class in an
image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from gapless.metrics.detection.masks import MaskIntersections, pair_offsets
from gapless.metrics.detection.objects import CROWD, DETECTION, IMAGE, ObjectTable

MISSED, IGNORED, HIT = range(3)
"""Outcomes of a detection: matched with nothing, with an ignored ground truth, or with one that counts."""


class Detections(NamedTuple):
    """Detections, ``[D]``, by image and class, and within these from the highest score."""

    classes: Tensor
    rank: Tensor
    score: Tensor
    outcome: Tensor
    """``[D, T, A]`` of uint8: `MISSED`, `IGNORED` or `HIT`."""
    is_outside: Tensor
    """``[D, A]`` of bool: whether the detection's size is outside an area range."""


class Evaluation(NamedTuple):
    """Matched detections, and the ground truth they are measured against."""

    detected: Detections
    truths: Tensor
    """``[K, A]``: the number of ground truths that count."""
    labels: Tensor
    """``[K]``: the label of each class."""


class SortedRows(NamedTuple):
    """Row indices of the table, sorted by image and class, and the group (image and class) of each."""

    order: Tensor
    group: Tensor


class HostSizes(NamedTuple):
    """Sizes that the host must know to launch kernels."""

    classes: int
    detections: int
    truths: int
    crowds: int
    pairs: list[int]
    """For each rank: the number of pairs of its detections with their candidates."""
    active: list[int]
    """For each rank: the number of detections that have a candidate."""


def evaluate(
    table: ObjectTable, max_detections: int, one_class: bool, intersections: MaskIntersections | None = None
) -> Evaluation:
    """Match the `max_detections` best detections of each image and class, at each IoU threshold.

    **The host waits** once, for the numbers of objects. With `one_class` labels are ignored. Intersections
    are computed from boxes, or read from `intersections` for masks.
    """
    kind, label, value, box = (table.read(name) for name in ("kind", "label", "value", "box"))
    rows = len(kind)
    classes, labels, count = number_classes(label, kind == IMAGE)
    if one_class:
        classes = torch.zeros_like(classes)
    group = (kind == IMAGE).cumsum(0) * rows + classes
    is_truth = kind > DETECTION
    sorted_detections = sort_in_groups(group, kind == DETECTION, value.argsort(descending=True, stable=True))
    sorted_truths = sort_in_groups(group, is_truth, torch.arange(rows, device=kind.device))
    rank = rank_equal_values(sorted_detections.group)
    first = torch.searchsorted(sorted_truths.group, sorted_detections.group)
    candidates = torch.searchsorted(sorted_truths.group, sorted_detections.group, right=True) - first
    is_detection = (kind == DETECTION)[sorted_detections.order]
    candidates = torch.where(is_detection & (rank < max_detections), candidates, 0)
    totals = (count, is_detection.sum(), is_truth.sum(), (kind == CROWD).sum())
    sizes = read_sizes(totals, candidates, rank, min(max_detections, rows))
    first, candidates, rank = (values[: sizes.detections] for values in (first, candidates, rank))
    detection_rows, truth_rows = (
        sorted_detections.order[: sizes.detections],
        sorted_truths.order[: sizes.truths],
    )
    crowd, boxes = kind[truth_rows] == CROWD, (box[detection_rows], box[truth_rows])
    areas = [values[:, 2] * values[:, 3] for values in boxes]
    size = torch.where(value[truth_rows] > 0, value[truth_rows], areas[1])
    ignored = table.is_outside(size) | crowd.unsqueeze(1)
    if intersections is None:
        intersect = partial(intersect_boxes, *boxes)
    else:
        offsets, truth_index = pair_offsets(kind)
        intersect = partial(
            look_up_intersections,
            intersections.read("both"),
            offsets[detection_rows],
            truth_index[truth_rows],
        )
    pairs = pair_candidates(
        first, candidates, rank, sizes, OverlapMeasure(intersect, areas[0], areas[1], crowd)
    )
    outcome = match_detections(pairs, sizes, ignored, crowd, table.min_ious)
    elsewhere = table.is_outside(areas[0])
    class_count = min(sizes.classes, 1) if one_class else sizes.classes
    truths = torch.zeros((class_count, ignored.shape[1]), dtype=torch.int64, device=kind.device)
    truths.index_add_(0, classes[truth_rows], (~ignored).to(torch.int64))
    kept_classes = torch.where(rank < max_detections, classes[detection_rows], class_count)
    detected = Detections(kept_classes, rank, value[detection_rows], outcome, elsewhere)
    return Evaluation(detected, truths, labels[: sizes.classes])


def number_classes(label: Tensor, is_image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Number the classes from 0; return each row's class ``[N]``, each class's label, and their count."""
    order = label.argsort()
    order = order[is_image[order].to(torch.uint8).argsort(stable=True)]
    ordered, is_object = label[order], ~is_image[order]
    is_first = is_object.clone()
    is_first[1:] &= (ordered[1:] != ordered[:-1]) | ~is_object[:-1]
    number = (is_first.cumsum(0) - 1).clamp_(min=0)
    classes = torch.empty_like(label).scatter_(0, order, number)
    labels = torch.zeros_like(label).scatter_(0, number.masked_fill(~is_object, len(label) - 1), ordered)
    return classes, labels, is_first.sum()


def sort_in_groups(group: Tensor, chosen: Tensor, order: Tensor) -> SortedRows:
    """Sort the `chosen` rows by group, keeping `order` within each; all other rows come last."""
    behind = torch.where(chosen, group, torch.iinfo(torch.int64).max)[order]
    ordered, again = behind.sort(stable=True)
    return SortedRows(order[again], ordered)


def rank_equal_values(ordered: Tensor) -> Tensor:
    """Return, for each of sorted values, how many equal values precede it."""
    index = torch.arange(len(ordered), device=ordered.device)
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return index - torch.where(is_first, index, 0).cummax(0).values


def read_sizes(totals: tuple[Tensor, ...], candidates: Tensor, rank: Tensor, max_rank: int) -> HostSizes:
    """Read the sizes; `totals` are the first four of them. **The host waits.**"""
    rank_index = rank.clamp(max=max_rank - 1)
    by_rank = torch.zeros((2, max_rank), dtype=torch.int64, device=rank.device)
    by_rank[0].index_add_(0, rank_index, candidates)
    by_rank[1].index_add_(0, rank_index, (candidates > 0).to(torch.int64))
    numbers = torch.cat((torch.stack(totals), by_rank.flatten()))
    count, detections, truths, crowds, *rest = numbers.tolist()
    pairs, active = rest[:max_rank], rest[max_rank:]
    used = sum(
        detections_of_rank > 0 for detections_of_rank in active
    )  # no gaps: a rank occurs only if all better ones do
    return HostSizes(count, detections, truths, crowds, pairs[:used], active[:used])


class CandidatePairs(NamedTuple):
    """Pairs of a detection and a ground truth of the same image and class, ``[P]``, by rank of the detection.

    The pairs of a detection are adjacent, sorted by increasing overlap.
    """

    detection: Tensor
    """Index into `detections`."""
    truth: Tensor
    iou: Tensor
    detections: Tensor
    total: int


class OverlapMeasure(NamedTuple):
    """Measures how much detections overlap ground truth."""

    common: Callable[[Tensor, Tensor], Tensor]
    """Returns the intersection areas of pairs, given as indices of detections and of ground truths."""
    detection_areas: Tensor
    """``[D]``."""
    truth_areas: Tensor
    crowd: Tensor

    def iou_of(self, detection: Tensor, truth: Tensor) -> Tensor:
        """Return the IoU of each pair, ``[P]``; for a crowd, the intersection's share of the detection."""
        common, area = self.common(detection, truth), self.detection_areas[detection]
        union = torch.where(self.crowd[truth], area, area + self.truth_areas[truth] - common)
        return torch.where(common > 0, common / union, 0.0)


def pair_candidates(
    first: Tensor, candidates: Tensor, rank: Tensor, sizes: HostSizes, overlap: OverlapMeasure
) -> CandidatePairs:
    """Pair each detection with its `candidates`, that many ground truths from index `first` on."""
    sort_key = rank.masked_fill(candidates == 0, len(sizes.active))
    chosen = sort_key.argsort(stable=True)[: sum(sizes.active)]
    candidates, total = candidates[chosen], sum(sizes.pairs)
    index = torch.arange(len(chosen), device=rank.device)
    owner = torch.repeat_interleave(index, candidates, output_size=total)
    start = (candidates.cumsum(0) - candidates)[owner]
    truth = first[chosen][owner] + torch.arange(total, device=rank.device) - start
    iou = overlap.iou_of(chosen[owner], truth)
    order = iou.argsort(stable=True)
    order = order[owner[order].argsort(stable=True)]
    return CandidatePairs(owner, truth[order], iou[order], chosen, len(rank))


def intersect_boxes(detected: Tensor, true: Tensor, detection: Tensor, truth: Tensor) -> Tensor:
    """Return the intersection areas ``[P]`` of the boxes at these indices."""
    detected, true = detected[detection], true[truth]
    low = torch.maximum(detected[:, :2], true[:, :2])
    high = torch.minimum(detected[:, 2:] + detected[:, :2], true[:, 2:] + true[:, :2])
    return (high - low).clamp_(min=0).prod(1)


def look_up_intersections(
    common: Tensor, offsets: Tensor, truth_index: Tensor, detection: Tensor, truth: Tensor
) -> Tensor:
    """Return the stored intersection areas ``[P]`` of the masks at these indices."""
    return common[offsets[detection] + truth_index[truth]]


def match_detections(
    pairs: CandidatePairs, sizes: HostSizes, ignored: Tensor, crowd: Tensor, min_ious: Tensor
) -> Tensor:
    """Return the outcome of each detection, ``[D, T, A]``, at each IoU threshold and area range."""
    device, total = ignored.device, len(pairs.truth)
    shape = (len(min_ious), ignored.shape[1])
    free = torch.ones((len(crowd), *shape), dtype=torch.bool, device=device)
    best = torch.zeros((len(pairs.detections), *shape), dtype=torch.int32, device=device)
    closes = ~crowd[pairs.truth].reshape(-1, 1, 1) if sizes.crowds else None
    reached = (pairs.iou.unsqueeze(1) >= min_ious).unsqueeze(2)
    # Ground truth that counts comes before ignored ones, then larger overlap decides.
    order_of_pair = torch.arange(1, total + 1, dtype=torch.int32, device=device).unsqueeze(1)
    worth = (order_of_pair + (~ignored)[pairs.truth].to(torch.int32) * total).unsqueeze(1)
    for low, high in consecutive_ranges(sizes.pairs):
        truth, owner = pairs.truth[low:high], pairs.detection[low:high]
        before = free[truth]
        choice = torch.where(reached[low:high] & before, worth[low:high], -1)
        best.scatter_reduce_(0, owner.reshape(-1, 1, 1).expand_as(choice), choice, "amax")
        taken = choice == best[owner]
        if closes is not None:
            taken &= closes[low:high]
        free.index_copy_(0, truth, before ^ taken)
    outcomes = torch.zeros((pairs.total, *shape), dtype=torch.uint8, device=device)
    return outcomes.index_copy_(0, pairs.detections, (best > 0).to(torch.uint8) + (best > total))


def consecutive_ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return start and end of consecutive ranges of these lengths."""
    edges = [0]
    for number in numbers:
        edges.append(edges[-1] + number)
    return list(pairwise(edges))
