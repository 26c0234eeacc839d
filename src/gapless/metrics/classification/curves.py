"""Points of ROC and precision-recall curves, and the areas under them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics.classification.label_messages import warn_if_any
from gapless.metrics.classification.scores import CumulativeCounts
from gapless.metrics.divide import divide, share
from gapless.metrics.host import is_readable_on_host

ClassCurves = tuple[Any, Any, Any]
"""Two rows of values and the thresholds, as tensors ``[K, P]`` or as lists with one tensor per class."""


def roc_points(cumulative: CumulativeCounts) -> tuple[Tensor, Tensor]:
    """Return false and true positive rates, ``[K, P]`` of float32."""
    warn_of_missing_classes(cumulative)
    fpr = divide(cumulative.fps, cumulative.negatives.unsqueeze(1))
    tpr = divide(cumulative.tps, cumulative.positives.unsqueeze(1))
    if cumulative.exact:
        fpr, tpr = (torch.nn.functional.pad(rate, (1, 0)) for rate in (fpr, tpr))
    return fpr, tpr


def warn_of_missing_classes(cumulative: CumulativeCounts) -> None:
    """Warn of classes without positives or negatives, if every score is kept and is on the CPU."""
    if not cumulative.exact or not is_readable_on_host(cumulative.positives):
        return
    checks = (("negative", "false", cumulative.negatives), ("positive", "true", cumulative.positives))
    for name, rate, count in checks:
        warn_if_any(
            count == 0,
            f"No {name} samples in targets, {rate} positive value should be meaningless."
            f" Returning zero tensor in {rate} positive score",
        )


def roc_area(cumulative: CumulativeCounts) -> Tensor:
    """Return the area under each ROC curve, ``[K]``, from integers; 0 without positives or negatives."""
    warn_of_missing_classes(cumulative)
    tps, fps = cumulative.tps, cumulative.fps
    # The trapezoid before the first score is empty: its true or its false positives are 0.
    twice = ((fps[:, 1:] - fps[:, :-1]) * (tps[:, 1:] + tps[:, :-1])).sum(1, dtype=torch.float64)
    return (twice / (cumulative.positives * cumulative.negatives)).nan_to_num_(0.0).mul_(0.5).float()


def trapezoid_area(fpr: Tensor, tpr: Tensor) -> Tensor:
    """Return the area under each curve, ``[K]``, by the trapezoidal rule."""
    return torch.trapezoid(tpr.double(), fpr.double(), dim=1).float()


def scaled_partial_area(fpr: Tensor, tpr: Tensor, max_fpr: float) -> Tensor:
    """Return the area up to `max_fpr`, ``[1]``, scaled so that chance is 0.5 and the best is 1."""
    limit = fpr.new_full((1, 1), max_fpr)
    stop = torch.searchsorted(fpr.contiguous(), limit, right=True).clamp(1, fpr.shape[1] - 1)
    low, high = fpr.gather(1, stop - 1), fpr.gather(1, stop)
    fraction = (limit - low) / (high - low)
    edge = tpr.gather(1, stop - 1).lerp(tpr.gather(1, stop), fraction)
    partial = trapezoid_area(fpr.clamp(max=max_fpr), torch.where(fpr > max_fpr, edge, tpr))
    chance_area = 0.5 * max_fpr**2
    scaled = 0.5 * (1 + (partial - chance_area) / (max_fpr - chance_area))
    return torch.where((fpr.sum() == 0) | (tpr.sum() == 0), trapezoid_area(fpr, tpr), scaled)


def average_precision(cumulative: CumulativeCounts, missing: float = 0.0) -> Tensor:
    """Return average precision, ``[K]``: the mean over recall steps; `missing` without positives."""
    precision = share(cumulative.tps, cumulative.tps + cumulative.fps)
    steps = torch.diff(cumulative.tps, dim=1, prepend=torch.zeros_like(cumulative.tps[:, :1]))
    total = (steps * precision).sum(1, dtype=torch.float64)
    return (total / cumulative.positives).nan_to_num_(missing).float()


AreaBounds = tuple[Tensor, Tensor]
"""The smallest and the largest area that scores in these bins may have, ``[K]`` each."""


def counts_at_bin_ends(cumulative: CumulativeCounts) -> tuple[Tensor, Tensor]:
    """Return true and false positives at the end of each bin, from none to all, ``[K, P + 2]`` of float64."""
    ends = []
    for column, total in ((cumulative.tps, cumulative.positives), (cumulative.fps, cumulative.negatives)):
        # Counts fall as thresholds rise; sorting restores that order for unsorted thresholds.
        inner = column.sort(1).values
        ends.append(torch.cat((torch.zeros_like(inner[:, :1]), inner, total.unsqueeze(1)), 1).double())
    return ends[0], ends[1]


def area_bounds(cumulative: CumulativeCounts, max_fpr: float | None) -> AreaBounds:
    """Return the bounds of the ROC area up to `max_fpr` (None for all of it).

    They are reached if, within each bin, all positives score below all negatives, or above them.
    """
    tps, fps = counts_at_bin_ends(cumulative)
    is_undefined = (cumulative.positives == 0) | (cumulative.negatives == 0)
    limit = 1.0 if max_fpr is None else max_fpr
    width = (fps / fps[:, -1:]).clamp(max=limit).diff(dim=1)
    rate = tps / tps[:, -1:]
    bounds = []
    for heights in (rate[:, :-1], rate[:, 1:]):
        partial = (width * heights).sum(1)
        if limit < 1:
            chance_area = 0.5 * limit**2
            partial = 0.5 * (1 + (partial - chance_area) / (limit - chance_area))
        bounds.append(partial.masked_fill(is_undefined, 0.0).float())
    return bounds[0], bounds[1]


def average_precision_bounds(cumulative: CumulativeCounts, missing: float) -> AreaBounds:
    """Return the bounds of average precision, from the extreme orders of scores within each bin."""
    tps, fps = counts_at_bin_ends(cumulative)
    steps, before, after = tps.diff(dim=1), fps[:, :-1], fps[:, 1:]
    first, last = tps[:, :-1] + 1, tps[:, 1:]
    # Lowest if all negatives of a bin come first. Precision at its 1st, 2nd, … positive is then concave, so
    # the mean of the first and the last is at most the mean of all.
    low = (first / (first + after) + last / (last + after)) / 2
    bounds = []
    for precision in (low, last / (last + before)):
        total = torch.where(steps > 0, steps * precision, 0.0).sum(1)
        bounds.append((total / tps[:, -1]).float().masked_fill_(cumulative.positives == 0, missing))
    return bounds[0], bounds[1]


def warn_of_undefined_recall(cumulative: CumulativeCounts, task: str) -> None:
    """Warn of labels without positives, whose recall is undefined, if every score is kept."""
    if cumulative.exact and task != "multiclass":
        warn_if_any(
            cumulative.positives == 0,
            "No positive samples found in target, recall is undefined. "
            "Setting recall to one for all thresholds.",
        )


def average_over_classes(scores: Tensor, average: str | None, support: Tensor) -> Tensor:
    """Return the average over classes, leaving out those whose score is NaN."""
    if average in (None, "none"):
        return scores
    is_defined = ~scores.isnan()
    warn_if_any(
        ~is_defined,
        "Average precision score for one or more classes was `nan`. "
        f"Ignoring these classes in {average}-average",
    )
    weights = is_defined * (support.float() if average == "weighted" else torch.ones_like(scores))
    return divide((scores.nan_to_num() * weights).sum(), weights.sum())


def precision_recall_curves(cumulative: CumulativeCounts, missing: float) -> ClassCurves:
    """Return precision and recall per class, from the lowest threshold up, and the thresholds.

    Each curve ends in precision 1 and recall 0. `missing` is the recall of a class without positives, if
    every score is kept.
    """
    precision, recall = precision_recall_points(cumulative, missing)
    if cumulative.exact:
        return drop_repeated_points(cumulative, precision, recall)
    ends = (torch.ones_like(precision[:, :1]), torch.zeros_like(recall[:, :1]))
    precision, recall = (
        torch.cat((values.flip(1), end), 1) for values, end in zip((precision, recall), ends, strict=True)
    )
    return precision, recall, cumulative.thresholds.flip(0)


def precision_recall_points(cumulative: CumulativeCounts, missing: float) -> tuple[Tensor, Tensor]:
    """Return precision and recall, ``[K, P]`` of float32, from the highest threshold down."""
    precision, recall = (
        cumulative.tps / (cumulative.tps + cumulative.fps),
        cumulative.tps / cumulative.positives.unsqueeze(1),
    )
    if cumulative.exact:
        recall = recall.masked_fill_(cumulative.positives.unsqueeze(1) == 0, missing)
    return precision, recall


def drop_repeated_points(cumulative: CumulativeCounts, precision: Tensor, recall: Tensor) -> ClassCurves:
    """Return the curves as lists per class, with one point for each distinct score."""
    curves: ClassCurves = ([], [], [])
    for i, is_last in enumerate(is_last_of_score(cumulative)):
        curves[0].append(torch.cat((precision[i][is_last].flip(0), precision.new_ones(1))))
        curves[1].append(torch.cat((recall[i][is_last].flip(0), recall.new_zeros(1))))
        curves[2].append(cumulative.thresholds[i][is_last].flip(0))
    return curves


def roc_curves(cumulative: CumulativeCounts) -> ClassCurves:
    """Return false and true positive rates per class, from the highest threshold down, and the thresholds."""
    fpr, tpr = roc_points(cumulative)
    if not cumulative.exact:
        return fpr, tpr, cumulative.thresholds
    curves: ClassCurves = ([], [], [])
    start = cumulative.thresholds.new_ones(1)
    for i, is_last in enumerate(is_last_of_score(cumulative)):
        with_start = torch.cat((is_last.new_ones(1), is_last))
        curves[0].append(fpr[i][with_start])
        curves[1].append(tpr[i][with_start])
        curves[2].append(torch.cat((start, cumulative.thresholds[i][is_last])))
    return curves


def is_last_of_score(cumulative: CumulativeCounts) -> Tensor:
    """Mark the last point of each distinct score that counts, ``[K, P]`` of bool.

    **The number of marks depends on the data**, so indexing with them waits.
    """
    above = cumulative.tps + cumulative.fps  # rises only at those points
    return above.diff(dim=1, prepend=torch.zeros_like(above[:, :1])) != 0


def mean_curve(curve: ClassCurves, descending: bool, x: int) -> ClassCurves:
    """Return the mean of the curves of all classes, at every abscissa of any class.

    `x` is the index in `curve` of the abscissas, ``1 - x`` that of the ordinates.
    """
    xs, ys, thresholds = curve[x], curve[1 - x], curve[2]
    classes = len(xs)
    if isinstance(thresholds, Tensor):
        merged = thresholds.repeat(classes)
        points = xs.flatten()
    else:
        merged, points = torch.cat(thresholds), torch.cat(xs)
    merged, points = merged.sort(descending=descending).values, points.sort().values
    total = torch.zeros_like(points)
    for i in range(classes):
        total = total + interpolate(points, xs[i], ys[i])
    mean = total / classes
    return (points, mean, merged) if x == 0 else (mean, points, merged)


def interpolate(points: Tensor, xs: Tensor, ys: Tensor) -> Tensor:
    """Interpolate linearly between ``(xs, ys)`` at `points`."""
    slope = divide(ys[1:] - ys[:-1], xs[1:] - xs[:-1])
    offset = ys[:-1] - slope * xs[:-1]
    segment = (
        torch.searchsorted(xs.nan_to_num(nan=torch.inf).sort().values, points, right=True)
        .sub_(1)
        .clamp_(0, len(slope) - 1)
    )
    return slope[segment] * points + offset[segment]
