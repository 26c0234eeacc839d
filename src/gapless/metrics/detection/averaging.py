"""Precision and recall of detections that were matched, and their averages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gapless.metrics.detection.matching import HIT, MISSED, Detected, Evaluated

TINY = 2.0**-52


class Curves(NamedTuple):
    """Of each threshold of IoU (T), recall (R), class (K), area (A) and number of detections (M).

    -1 for a class of which nothing is there that counts.
    """

    precision: Tensor
    """``[T, R, K, A, M]``: the best precision at that recall or a higher one."""
    recall: Tensor
    """``[T, K, A, M]``: at all detections."""
    scores: Tensor
    """``[T, R, K, A, M]``: of the detection at which that recall is reached."""


class Columns(NamedTuple):
    """Detections of areas, class after class, the best of each first."""

    hits: Tensor
    """``[A, T, D]`` of bool."""
    wrong: Tensor
    score: Tensor
    classes: Tensor
    edges: Tensor
    """``[K + 1]``: where a class begins."""

    def only(self, which: Tensor | None, area: slice) -> Columns:
        """Those of some areas of which `which` holds; None for all."""
        hits, wrong = self.hits[area], self.wrong[area]
        if which is not None:
            hits, wrong = hits & which, wrong & which
        return self._replace(hits=hits, wrong=wrong)


def curves(found: Evaluated, numbers: Sequence[int], at: int | None, recalls: Tensor) -> Curves:
    """Curves for each of the `numbers` of detections, the last of which is the largest.

    Where `at` is not None, there is only what averages need, and -1 for all else: everything at the largest
    number; and for objects of all sizes, precision at the number `at` and recall at each.
    """
    ordered, truths = by_class(found.detected), found.truths
    needed, last = least_hits(truths, recalls), len(numbers) - 1
    best = [None if i == last else ordered.rank < number for i, number in enumerate(numbers)]
    ious, (classes, areas) = ordered.outcome.shape[1], truths.shape
    precision = ordered.score.new_full((areas, len(numbers), ious, len(recalls), classes), -1)
    recall, scores = torch.full_like(precision[:, :, :, 0], -1), torch.full_like(precision, -1)
    columns = columns_of(ordered, classes)
    for i, which in enumerate(best):
        every = slice(None) if at is None or i == last else slice(1)
        some = columns.only(which, every)
        recall[every, i] = recall_of(some, truths.t()[every])
        if every.stop is None or i == at:
            reached = precision_of(some, needed.movedim(2, 0)[every])
            precision[every, i], scores[every, i] = reached
    absent = (truths == 0).t().unsqueeze(1)
    recall.masked_fill_(absent.unsqueeze(1), -1)
    for values in (precision, scores):
        values.masked_fill_(absent.unsqueeze(1).unsqueeze(1), -1)
    return Curves(precision.permute(2, 3, 4, 0, 1), recall.permute(2, 3, 0, 1), scores.permute(2, 3, 4, 0, 1))


def by_class(detected: Detected) -> Detected:
    """Class after class, the best of each first; those of no class are behind."""
    order = detected.score.argsort(descending=True, stable=True)
    order = order[detected.classes[order].argsort(stable=True)]
    return Detected(*(one[order] for one in detected))


def columns_of(ordered: Detected, classes: int) -> Columns:
    """Of all areas."""
    edges = torch.arange(classes + 1, device=ordered.classes.device)
    edges = torch.searchsorted(ordered.classes, edges)
    hits = (ordered.outcome == HIT).permute(2, 1, 0).contiguous()
    wrong = (ordered.outcome == MISSED) & ~ordered.elsewhere.unsqueeze(1)
    return Columns(hits, wrong.permute(2, 1, 0).contiguous(), ordered.score, ordered.classes, edges)


def recall_of(columns: Columns, truths: Tensor) -> Tensor:
    """``[A, T, K]``, of so many truths, ``[A, K]``."""
    total = torch.nn.functional.pad(columns.hits.cumsum(2), (1, 0))[..., columns.edges]
    return (total[..., 1:] - total[..., :-1]).to(columns.score.dtype) / truths.unsqueeze(1)


def precision_of(columns: Columns, needed: Tensor) -> tuple[Tensor, Tensor]:
    """``[A, T, R, K]`` each: precision and scores where there are as many hits as `needed`, ``[A, R, K]``."""
    score, (start, end) = columns.score, (columns.edges[:-1], columns.edges[1:])
    (areas, levels, classes), rows = needed.shape, columns.hits.shape[1]
    if not len(score):
        nothing = score.new_zeros((areas, rows, levels, classes))
        return nothing, nothing
    both = torch.stack((columns.hits, columns.wrong))
    hits, wrong = in_class(both, columns.classes, start)
    precision = hits.to(score.dtype) / (hits + wrong + TINY)
    # The best from here on, within the class: those of earlier classes are lifted above those of later ones.
    lift = 2.0 * (classes - columns.classes)
    best = (precision + lift).flip(2).cummax(2).values.flip(2) - lift
    width = len(score) + 2  # more than the hits of a class, and one that none has
    asked = torch.arange(classes, device=score.device) * width + needed.clamp(max=width - 1)
    asked = asked.flatten(1).unsqueeze(1).expand(-1, rows, -1).contiguous()
    places = torch.searchsorted(hits + columns.classes * width, asked)
    reached = places < end.repeat(levels)
    places = places.clamp_(max=len(score) - 1)
    found = [torch.where(reached, one, 0.0) for one in (best.gather(2, places), score[places])]
    shape = (areas, rows, levels, classes)
    return found[0].view(shape), found[1].view(shape)


def in_class(values: Tensor, classes: Tensor, start: Tensor) -> Tensor:
    """``[..., D]``: how many of `values` there were so far in the class; what has no class is behind."""
    total = torch.nn.functional.pad(values.cumsum(-1), (1, 0))
    before = torch.nn.functional.pad(total[..., start], (0, 1))
    return total[..., 1:] - before[..., classes]


def least_hits(truths: Tensor, recalls: Tensor) -> Tensor:
    """``[R, K, A]``: how many hits make a recall as floating point has it, of so many truths."""
    wanted, all_of = recalls.reshape(-1, 1, 1), truths.to(recalls.dtype)
    guess = (wanted * all_of).ceil()
    guess = guess - ((guess - 1) / all_of >= wanted).to(guess.dtype)
    guess = guess + (guess / all_of < wanted).to(guess.dtype)
    return guess.nan_to_num(0.0).clamp(min=0).to(torch.int64)


def average(values: Tensor, truths: Tensor) -> Tensor:
    """``[X]``: the mean of `values`, ``[..., K, X]``, over the classes that occur, ``[K, X]``; -1 where none
    does.
    """
    there = (truths > 0).expand_as(values)
    number = there.flatten(0, -2).sum(0)
    total = torch.where(there, values, 0.0).flatten(0, -2).sum(0)
    return torch.where(number > 0, total / number, -1.0)
