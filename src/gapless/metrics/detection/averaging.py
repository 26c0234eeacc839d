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


class Column(NamedTuple):
    """Detections of one area, class after class, the best of each first."""

    hits: Tensor
    """``[T, D]`` of bool."""
    wrong: Tensor
    score: Tensor
    classes: Tensor
    edges: Tensor
    """``[K + 1]``: where a class begins."""

    def only(self, which: Tensor | None) -> Column:
        """Those of which `which` holds; None for all."""
        if which is None:
            return self
        return self._replace(hits=self.hits & which, wrong=self.wrong & which)


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
    for area, column in enumerate(columns_of(ordered, len(truths))):
        for i, which in enumerate(best):
            if at is None or area == 0 or i == last:
                recall[area, i] = recall_of(column.only(which), truths[:, area])
            if at is None or i == last or (area == 0 and i == at):
                precision[area, i], scores[area, i] = precision_of(column.only(which), needed[:, :, area])
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


def columns_of(ordered: Detected, classes: int) -> list[Column]:
    """One column for each area."""
    edges = torch.arange(classes + 1, device=ordered.classes.device)
    edges = torch.searchsorted(ordered.classes, edges)
    hits = (ordered.outcome == HIT).permute(2, 1, 0).contiguous()
    wrong = (ordered.outcome == MISSED) & ~ordered.elsewhere.unsqueeze(1)
    both = zip(hits, wrong.permute(2, 1, 0).contiguous(), strict=True)
    return [Column(*one, ordered.score, ordered.classes, edges) for one in both]


def recall_of(column: Column, truths: Tensor) -> Tensor:
    """``[T, K]``."""
    total = torch.nn.functional.pad(column.hits.cumsum(1), (1, 0))[:, column.edges]
    return (total[:, 1:] - total[:, :-1]).to(column.score.dtype) / truths


def precision_of(column: Column, needed: Tensor) -> tuple[Tensor, Tensor]:
    """``[T, R, K]`` each: precision, and scores, where there are as many hits as `needed`, ``[R, K]``."""
    score, (start, end) = column.score, (column.edges[:-1], column.edges[1:])
    (levels, classes), rows = needed.shape, len(column.hits)
    if not len(score):
        nothing = score.new_zeros((rows, levels, classes))
        return nothing, nothing
    hits, wrong = (in_class(one, column.classes, start) for one in (column.hits, column.wrong))
    precision = hits.to(score.dtype) / (hits + wrong + TINY)
    # The best from here on, within the class: those of earlier classes are lifted above those of later ones.
    lift = 2.0 * (classes - column.classes)
    best = (precision + lift).flip(1).cummax(1).values.flip(1) - lift
    width = len(score) + 2  # more than the hits of a class, and one that none has
    asked = torch.arange(classes, device=score.device) * width + needed.clamp(max=width - 1)
    asked = asked.flatten().expand(rows, -1).contiguous()
    places = torch.searchsorted(hits + column.classes * width, asked)
    reached = places < end.repeat(levels)
    places = places.clamp_(max=len(score) - 1)
    found = [torch.where(reached, one, 0.0) for one in (best.gather(1, places), score[places])]
    return found[0].view(rows, levels, classes), found[1].view(rows, levels, classes)


def in_class(values: Tensor, classes: Tensor, start: Tensor) -> Tensor:
    """``[T, D]``: how many of `values` there were so far in the class; what has no class is behind."""
    total = torch.nn.functional.pad(values.cumsum(1), (1, 0))
    before = torch.nn.functional.pad(total[:, start], (0, 1))
    return total[:, 1:] - before[:, classes]


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
