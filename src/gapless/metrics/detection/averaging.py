"""Precision and recall of matched detections, and their averages over classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gapless.metrics.detection.matching import HIT, MISSED, Detections, Evaluation

DIVISOR_EPSILON = 2.0**-52
"""Added to divisors, as in pycocotools, so that precision before the first detection is 0 instead of NaN."""


class DetectionCurves(NamedTuple):
    """Values per IoU threshold (T), recall level (R), class (K), area range (A) and detection limit (M).

    They are -1 for a class without ground truth that counts.
    """

    precision: Tensor
    """``[T, R, K, A, M]``: the best precision at that recall or a higher one."""
    recall: Tensor
    """``[T, K, A, M]``: the recall of all detections."""
    scores: Tensor
    """``[T, R, K, A, M]``: the score of the detection that reaches that recall."""


class SortedDetections(NamedTuple):
    """Detections sorted by class, and within a class from the highest score."""

    hits: Tensor
    """``[A, T, D]`` of bool: matched with ground truth that counts."""
    wrong: Tensor
    """``[A, T, D]`` of bool: false positives."""
    score: Tensor
    classes: Tensor
    edges: Tensor
    """``[K + 1]``: the index at which each class begins."""

    def select(self, mask: Tensor | None, area: slice) -> SortedDetections:
        """Keep the area ranges in `area`, and the outcomes where `mask` is true (None for all)."""
        hits, wrong = self.hits[area], self.wrong[area]
        if mask is not None:
            hits, wrong = hits & mask, wrong & mask
        return self._replace(hits=hits, wrong=wrong)


def compute_curves(
    evaluation: Evaluation, limits: Sequence[int], main_limit: int | None, recalls: Tensor
) -> DetectionCurves:
    """Compute the curves at each of the `limits` on the number of detections; the last is the largest.

    With an index `main_limit`, only what the averages need is computed and all else is -1: everything at the
    largest limit and, for objects of all sizes, precision at the main limit and recall at each.
    """
    ordered, truths = sort_by_class(evaluation.detected), evaluation.truths
    needed_hits, last = min_hits(truths, recalls), len(limits) - 1
    masks = [None if i == last else ordered.rank < number for i, number in enumerate(limits)]
    ious, (classes, areas) = ordered.outcome.shape[1], truths.shape
    precision = ordered.score.new_full((areas, len(limits), ious, len(recalls), classes), -1)
    recall, scores = torch.full_like(precision[:, :, :, 0], -1), torch.full_like(precision, -1)
    columns = split_outcomes(ordered, classes)
    for i, mask in enumerate(masks):
        areas_slice = slice(None) if main_limit is None or i == last else slice(1)
        selected = columns.select(mask, areas_slice)
        recall[areas_slice, i] = compute_recall(selected, truths.t()[areas_slice])
        if areas_slice.stop is None or i == main_limit:
            points = compute_precision(selected, needed_hits.movedim(2, 0)[areas_slice])
            precision[areas_slice, i], scores[areas_slice, i] = points
    absent = (truths == 0).t().unsqueeze(1)
    recall.masked_fill_(absent.unsqueeze(1), -1)
    for values in (precision, scores):
        values.masked_fill_(absent.unsqueeze(1).unsqueeze(1), -1)
    return DetectionCurves(
        precision.permute(2, 3, 4, 0, 1), recall.permute(2, 3, 0, 1), scores.permute(2, 3, 4, 0, 1)
    )


def sort_by_class(detected: Detections) -> Detections:
    """Sort detections by class, and within a class from the highest score; those of no class come last."""
    order = detected.score.argsort(descending=True, stable=True)
    order = order[detected.classes[order].argsort(stable=True)]
    return Detections(*(column[order] for column in detected))


def split_outcomes(ordered: Detections, classes: int) -> SortedDetections:
    """Split the outcomes of sorted detections into hits and false positives, for all area ranges."""
    edges = torch.arange(classes + 1, device=ordered.classes.device)
    edges = torch.searchsorted(ordered.classes, edges)
    hits = (ordered.outcome == HIT).permute(2, 1, 0).contiguous()
    wrong = (ordered.outcome == MISSED) & ~ordered.is_outside.unsqueeze(1)
    return SortedDetections(hits, wrong.permute(2, 1, 0).contiguous(), ordered.score, ordered.classes, edges)


def compute_recall(columns: SortedDetections, truths: Tensor) -> Tensor:
    """Return recall ``[A, T, K]``, given the number of ground truths ``[A, K]``."""
    total = torch.nn.functional.pad(columns.hits.cumsum(2), (1, 0))[..., columns.edges]
    return (total[..., 1:] - total[..., :-1]).to(columns.score.dtype) / truths.unsqueeze(1)


def compute_precision(columns: SortedDetections, needed_hits: Tensor) -> tuple[Tensor, Tensor]:
    """Return precision and scores, ``[A, T, R, K]`` each, where hits reach `needed_hits`, ``[A, R, K]``."""
    score, (start, end) = columns.score, (columns.edges[:-1], columns.edges[1:])
    (areas, levels, classes), rows = needed_hits.shape, columns.hits.shape[1]
    if not len(score):
        zeros = score.new_zeros((areas, rows, levels, classes))
        return zeros, zeros
    stacked = torch.stack((columns.hits, columns.wrong))
    hits, wrong = cumulate_in_class(stacked, columns.classes, start)
    precision = hits.to(score.dtype) / (hits + wrong + DIVISOR_EPSILON)
    # The best precision from each detection on, within its class: earlier classes are lifted above later.
    lift = 2.0 * (classes - columns.classes)
    best = (precision + lift).flip(2).cummax(2).values.flip(2) - lift
    width = len(score) + 2  # larger than any number of hits, with one number that no class reaches
    queries = torch.arange(classes, device=score.device) * width + needed_hits.clamp(max=width - 1)
    queries = queries.flatten(1).unsqueeze(1).expand(-1, rows, -1).contiguous()
    positions = torch.searchsorted(hits + columns.classes * width, queries)
    reached = positions < end.repeat(levels)
    positions = positions.clamp_(max=len(score) - 1)
    points = [torch.where(reached, values, 0.0) for values in (best.gather(2, positions), score[positions])]
    shape = (areas, rows, levels, classes)
    return points[0].view(shape), points[1].view(shape)


def cumulate_in_class(values: Tensor, classes: Tensor, start: Tensor) -> Tensor:
    """Return cumulative sums of `values` within each class, ``[..., D]``; those of no class come last."""
    total = torch.nn.functional.pad(values.cumsum(-1), (1, 0))
    before = torch.nn.functional.pad(total[..., start], (0, 1))
    return total[..., 1:] - before[..., classes]


def min_hits(truths: Tensor, recalls: Tensor) -> Tensor:
    """Return how many hits reach each recall in floating-point division, ``[R, K, A]``."""
    levels, totals = recalls.reshape(-1, 1, 1), truths.to(recalls.dtype)
    hits = (levels * totals).ceil()
    hits = hits - ((hits - 1) / totals >= levels).to(hits.dtype)
    hits = hits + (hits / totals < levels).to(hits.dtype)
    return hits.nan_to_num(0.0).clamp(min=0).to(torch.int64)


def mean_over_classes(values: Tensor, truths: Tensor) -> Tensor:
    """Return the mean of `values`, ``[..., K, X]``, over classes with ground `truths`, ``[K, X]``.

    The result is ``[X]``, -1 where no class has any.
    """
    occurs = (truths > 0).expand_as(values)
    count = occurs.flatten(0, -2).sum(0)
    total = torch.where(occurs, values, 0.0).flatten(0, -2).sum(0)
    return torch.where(count > 0, total / count, -1.0)
