"""Curves over all thresholds, and the areas under them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics.classification.scores import Rising
from gapless.metrics.classification.words import warn_on_host
from gapless.metrics.divide import divide, share
from gapless.metrics.host import within_reach

Curve = tuple[Any, Any, Any]


def roc_points(rising: Rising) -> tuple[Tensor, Tensor]:
    """False and true positive rates, ``[K, P]`` of float32."""
    warn_of_missing(rising)
    fpr = divide(rising.fps, rising.negatives.unsqueeze(1))
    tpr = divide(rising.tps, rising.positives.unsqueeze(1))
    if rising.exact:
        fpr, tpr = (torch.nn.functional.pad(one, (1, 0)) for one in (fpr, tpr))
    return fpr, tpr


def warn_of_missing(rising: Rising) -> None:
    """Warn of classes without positives or negatives, where every score is kept, on the CPU."""
    if not rising.exact or not within_reach(rising.positives):
        return
    several = (("negative", "false", rising.negatives), ("positive", "true", rising.positives))
    for name, rate, count in several:
        warn_on_host(
            count == 0,
            f"No {name} samples in targets, {rate} positive value should be meaningless."
            f" Returning zero tensor in {rate} positive score",
        )


def roc_area(rising: Rising) -> Tensor:
    """``[K]``: the area under each curve, from whole numbers; 0 without positives or without negatives."""
    warn_of_missing(rising)
    tps, fps = rising.tps, rising.fps
    # Of the first score of all, and so on the way to it, one of both is 0.
    twice = ((fps[:, 1:] - fps[:, :-1]) * (tps[:, 1:] + tps[:, :-1])).sum(1, dtype=torch.float64)
    return (twice / (rising.positives * rising.negatives)).nan_to_num_(0.0).mul_(0.5).float()


def area(fpr: Tensor, tpr: Tensor) -> Tensor:
    """``[K]``: the area under each curve."""
    return torch.trapezoid(tpr.double(), fpr.double(), dim=1).float()


def partial_area(fpr: Tensor, tpr: Tensor, most: float) -> Tensor:
    """``[1]``: the area up to the false positive rate `most`, scaled: chance is 0.5 and the best is 1."""
    limit = fpr.new_full((1, 1), most)
    stop = torch.searchsorted(fpr.contiguous(), limit, right=True).clamp(1, fpr.shape[1] - 1)
    low, high = fpr.gather(1, stop - 1), fpr.gather(1, stop)
    share = (limit - low) / (high - low)
    edge = tpr.gather(1, stop - 1).lerp(tpr.gather(1, stop), share)
    part = area(fpr.clamp(max=most), torch.where(fpr > most, edge, tpr))
    least = 0.5 * most**2
    scaled = 0.5 * (1 + (part - least) / (most - least))
    return torch.where((fpr.sum() == 0) | (tpr.sum() == 0), area(fpr, tpr), scaled)


def average_precision(rising: Rising, missing: float = 0.0) -> Tensor:
    """``[K]``: precision, averaged over the steps of recall; `missing` where there are no positives."""
    precision = share(rising.tps, rising.tps + rising.fps)
    steps = torch.diff(rising.tps, dim=1, prepend=torch.zeros_like(rising.tps[:, :1]))
    total = (steps * precision).sum(1, dtype=torch.float64)
    return (total / rising.positives).nan_to_num_(missing).float()


Bounds = tuple[Tensor, Tensor]
"""``[K]`` each: the least and the largest area that scores in these bins may have."""


def ends_of_bins(rising: Rising) -> tuple[Tensor, Tensor]:
    """``[K, P + 2]`` of float64: true and false positives where each bin ends, from none to all."""
    found = []
    for counts, total in ((rising.tps, rising.positives), (rising.fps, rising.negatives)):
        # Both fall with the threshold, in whatever order these were given.
        inner = counts.sort(1).values
        found.append(torch.cat((torch.zeros_like(inner[:, :1]), inner, total.unsqueeze(1)), 1).double())
    return found[0], found[1]


def area_bounds(rising: Rising, most: float | None) -> Bounds:
    """Of the area up to the false positive rate `most`: within a bin either all positives score above all
    negatives, or below them.
    """
    tps, fps = ends_of_bins(rising)
    none = (rising.positives == 0) | (rising.negatives == 0)
    limit = 1.0 if most is None else most
    width = (fps / fps[:, -1:]).clamp(max=limit).diff(dim=1)
    rate = tps / tps[:, -1:]
    found = []
    for heights in (rate[:, :-1], rate[:, 1:]):
        part = (width * heights).sum(1)
        if limit < 1:
            least = 0.5 * limit**2
            part = 0.5 * (1 + (part - least) / (limit - least))
        found.append(part.masked_fill(none, 0.0).float())
    return found[0], found[1]


def average_precision_bounds(rising: Rising, missing: float) -> Bounds:
    """Of average precision: within a bin either all negatives come first, or all positives, at one score."""
    tps, fps = ends_of_bins(rising)
    steps, before, after = tps.diff(dim=1), fps[:, :-1], fps[:, 1:]
    first, last = tps[:, :-1] + 1, tps[:, 1:]
    # Precision at the 1st, 2nd, … positive after so many negatives is concave: its sum is above the chord's.
    low = (first / (first + after) + last / (last + after)) / 2
    found = []
    for precision in (low, last / (last + before)):
        total = torch.where(steps > 0, steps * precision, 0.0).sum(1)
        found.append((total / tps[:, -1]).float().masked_fill_(rising.positives == 0, missing))
    return found[0], found[1]


def recall_unknown(rising: Rising, task: str) -> None:
    """Warn of labels without positives, where every score is kept."""
    if rising.exact and task != "multiclass":
        warn_on_host(
            rising.positives == 0,
            "No positive samples found in target, recall is undefined. "
            "Setting recall to one for all thresholds.",
        )


def over_classes(scores: Tensor, average: str | None, support: Tensor) -> Tensor:
    """The average over classes, without those that have no score."""
    if average in (None, "none"):
        return scores
    there = ~scores.isnan()
    warn_on_host(
        ~there,
        "Average precision score for one or more classes was `nan`. "
        f"Ignoring these classes in {average}-average",
    )
    weights = there * (support.float() if average == "weighted" else torch.ones_like(scores))
    return divide((scores.nan_to_num() * weights).sum(), weights.sum())


def precision_recall(rising: Rising, missing: float) -> Curve:
    """Per class: precision and recall from the lowest threshold up, ending in (1, 0), and the thresholds.

    `missing` is the recall of a class without positives where every score is kept.
    """
    precision, recall = precision_recall_points(rising, missing)
    if rising.exact:
        return thinned(rising, precision, recall)
    ends = (torch.ones_like(precision[:, :1]), torch.zeros_like(recall[:, :1]))
    precision, recall = (
        torch.cat((one.flip(1), end), 1) for one, end in zip((precision, recall), ends, strict=True)
    )
    return precision, recall, rising.thresholds.flip(0)


def precision_recall_points(rising: Rising, missing: float) -> tuple[Tensor, Tensor]:
    """Precision and recall, ``[K, P]`` of float32, from the highest threshold down."""
    precision, recall = rising.tps / (rising.tps + rising.fps), rising.tps / rising.positives.unsqueeze(1)
    if rising.exact:
        recall = recall.masked_fill_(rising.positives.unsqueeze(1) == 0, missing)
    return precision, recall


def thinned(rising: Rising, precision: Tensor, recall: Tensor) -> Curve:
    """The same where every score is kept: one point for each that differs, in lists, one entry per class."""
    found: Curve = ([], [], [])
    for i, there in enumerate(distinct(rising)):
        found[0].append(torch.cat((precision[i][there].flip(0), precision.new_ones(1))))
        found[1].append(torch.cat((recall[i][there].flip(0), recall.new_zeros(1))))
        found[2].append(rising.thresholds[i][there].flip(0))
    return found


def receiver_operating(rising: Rising) -> Curve:
    """Per class: false and true positive rates from the highest threshold down, and the thresholds."""
    fpr, tpr = roc_points(rising)
    if not rising.exact:
        return fpr, tpr, rising.thresholds
    found: Curve = ([], [], [])
    start = rising.thresholds.new_ones(1)
    for i, there in enumerate(distinct(rising)):
        whole = torch.cat((there.new_ones(1), there))
        found[0].append(fpr[i][whole])
        found[1].append(tpr[i][whole])
        found[2].append(torch.cat((start, rising.thresholds[i][there])))
    return found


def distinct(rising: Rising) -> Tensor:
    """``[K, P]``: the last point of each score that counts. **How many there are depends on the data.**"""
    above = rising.tps + rising.fps  # which rises there alone
    return above.diff(dim=1, prepend=torch.zeros_like(above[:, :1])) != 0


def mean_curve(curve: Curve, descending: bool, x: int) -> Curve:
    """The mean over classes of curve values ``1 - x`` at every value ``x`` of any class."""
    xs, ys, thresholds = curve[x], curve[1 - x], curve[2]
    classes = len(xs)
    if isinstance(thresholds, Tensor):
        merged = thresholds.repeat(classes)
        at = xs.flatten()
    else:
        merged, at = torch.cat(thresholds), torch.cat(xs)
    merged, at = merged.sort(descending=descending).values, at.sort().values
    total = torch.zeros_like(at)
    for i in range(classes):
        total = total + interpolated(at, xs[i], ys[i])
    mean = total / classes
    return (at, mean, merged) if x == 0 else (mean, at, merged)


def interpolated(at: Tensor, xs: Tensor, ys: Tensor) -> Tensor:
    """Lines through ``(xs, ys)``, evaluated at `at`."""
    slope = divide(ys[1:] - ys[:-1], xs[1:] - xs[:-1])
    offset = ys[:-1] - slope * xs[:-1]
    segment = (
        torch.searchsorted(xs.nan_to_num(nan=torch.inf).sort().values, at, right=True)
        .sub_(1)
        .clamp_(0, len(slope) - 1)
    )
    return slope[segment] * at + offset[segment]
