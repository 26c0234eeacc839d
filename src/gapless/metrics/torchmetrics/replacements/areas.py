"""Exact areas under curves in fixed size: all scores in order, and only the last of equal ones counts.

TorchMetrics cuts the curve down to its different thresholds, class by class, with a wait for each class's
number of them. The area needs no such list. Curves themselves do: their length is the user's to see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torchmetrics.utilities.prints import rank_zero_warn

from gapless.metrics.classification.curves import average_precision, trapezoid_area
from gapless.metrics.classification.scores import CumulativeCounts, cumulate
from gapless.metrics.torchmetrics._registry import Function, instead_of
from gapless.metrics.torchmetrics._relink import RELINKER

SAYS = "exact areas are computed at a fixed size, all classes at once, with one check for empty classes"
CHUNK = 2**24
"""So many scores are put in order at once; the columns of more are taken in turn."""

Area = Callable[[CumulativeCounts], Tensor]


def _under_roc(rising: CumulativeCounts) -> Tensor:
    """Areas (C,); `nan` without positives or without negatives."""
    fpr, tpr = (
        pad(one / total.unsqueeze(1), (1, 0))
        for one, total in ((rising.fps, rising.negatives), (rising.tps, rising.positives))
    )
    return trapezoid_area(fpr, tpr)


def _average_precision(rising: CumulativeCounts) -> Tensor:
    """Areas (C,); `nan` without positives."""
    return average_precision(rising, missing=torch.nan)


def _areas(
    scores: Tensor, positive: Tensor, keep: Tensor | None, measure: Area
) -> tuple[Tensor, Tensor, Tensor]:
    """Areas, positives and negatives of each column (C,).

    Scores (N, C) with masks of the same shape: what is positive, and what counts at all.
    """
    keep = torch.ones_like(positive) if keep is None else keep
    columns = [one.T.split(max(1, CHUNK // len(scores))) for one in (scores, positive, keep)]
    with torch.no_grad():
        several = (cumulate(*part) for part in zip(*columns, strict=True))  # one after the other
        found = [(measure(one), one.positives, one.negatives) for one in several]
    areas, hits, misses = (torch.cat(one) for one in zip(*found, strict=True))
    return areas, hits, misses


def _exact(state: Any, thresholds: Any) -> bool:
    return thresholds is None and not isinstance(state, Tensor) and state[0].numel() > 0


def _averaged(areas: Tensor, hits: Tensor, average: str | None) -> Tensor:
    """What `average` makes of areas (C,), of which some can be `nan`: these are left out."""
    if average == "macro":
        return areas.nanmean()
    if average == "weighted":
        missing = areas.isnan()
        weights = hits.float().masked_fill(missing, 0)
        return (areas.masked_fill(missing, 0) * (weights / weights.sum().clamp(min=1))).sum()
    return areas


@instead_of("functional.classification.auroc:_binary_auroc_compute", SAYS)
def _binary_auroc(original: Function) -> Function:
    def compute(state: Any, thresholds: Any, max_fpr: float | None = None, pos_label: int = 1) -> Tensor:
        if _exact(state, thresholds) and max_fpr in (None, 1):
            scores, target = state[0].reshape(-1, 1), state[1].reshape(-1, 1)
            areas, hits, misses = _areas(scores, target == pos_label, None, _under_roc)
            if bool((hits > 0) & (misses > 0)):
                return areas.squeeze(0)
        return RELINKER.inner(original)(state, thresholds, max_fpr, pos_label)  # type: ignore[no-any-return]

    return compute


@instead_of("functional.classification.average_precision:_binary_average_precision_compute", SAYS)
def _binary_precision(original: Function) -> Function:
    def compute(state: Any, thresholds: Any) -> Tensor:
        if _exact(state, thresholds):
            scores, target = state[0].reshape(-1, 1), state[1].reshape(-1, 1)
            areas, hits, _ = _areas(scores, target == 1, None, _average_precision)
            if bool(hits > 0):
                return areas.squeeze(0)
        return RELINKER.inner(original)(state, thresholds)  # type: ignore[no-any-return]

    return compute


KNOWN = ("macro", "weighted", "none", None)


def _roc_of(scores: Tensor, positive: Tensor, keep: Tensor | None, average: str | None) -> Tensor:
    """Averaged areas under ROC; 0 for columns that have no positives or no negatives."""
    areas, hits, misses = _areas(scores, positive, keep, _under_roc)
    missing = (hits == 0) | (misses == 0)
    if bool(missing.any()):
        rank_zero_warn("No positive or no negative samples for some classes or labels: their AUROC is 0")
    return _averaged(areas.masked_fill(missing, 0), hits, average)


def _precision_of_classes(scores: Tensor, positive: Tensor, keep: None, average: str | None) -> Tensor:
    """Averaged average precisions; `nan` for classes that have no positives, which averages leave out.

    They are 0 instead where all targets are the first class: TorchMetrics takes that for targets of 0 and 1.
    """
    areas, hits, _ = _areas(scores, positive, keep, _average_precision)
    missing = hits == 0
    some, all_first = torch.stack([missing.any(), positive[:, 0].all()]).tolist()
    if some:
        rank_zero_warn(f"No positive samples for some classes: average precision without them ({average})")
    return _averaged(areas.masked_fill(missing, 0) if all_first else areas, hits, average)


def _precision_of_labels(
    scores: Tensor, positive: Tensor, keep: Tensor | None, average: str | None
) -> Tensor:
    """Averaged average precisions; 0 for labels that have no positives."""
    areas, hits, _ = _areas(scores, positive, keep, _average_precision)
    missing = hits == 0
    if bool(missing.any()):
        rank_zero_warn("No positive samples for some labels: their average precision is 0")
    return _averaged(areas.masked_fill(missing, 0), hits, average)


def _of_classes(area: Callable[..., Tensor]) -> Callable[[Function], Function]:
    def make(original: Function) -> Function:
        def compute(
            state: Any, num_classes: int, average: str | None = "macro", thresholds: Any = None
        ) -> Tensor:
            if _exact(state, thresholds) and average in KNOWN:
                positive = state[1].unsqueeze(1) == torch.arange(num_classes, device=state[1].device)
                return area(state[0], positive, None, average)
            return RELINKER.inner(original)(state, num_classes, average, thresholds)  # type: ignore[no-any-return]

        return compute

    return make


def _of_labels(area: Callable[..., Tensor]) -> Callable[[Function], Function]:
    def make(original: Function) -> Function:
        def compute(
            state: Any, num_labels: int, average: Any, thresholds: Any, ignore_index: int | None = None
        ) -> Tensor:
            if _exact(state, thresholds) and average in KNOWN:
                keep = None if ignore_index is None else state[1] != ignore_index
                return area(state[0], state[1] == 1, keep, average)
            given = (state, num_labels, average, thresholds, ignore_index)
            return RELINKER.inner(original)(*given)  # type: ignore[no-any-return]

        return compute

    return make


for _place, _make in (
    ("auroc:_multiclass_auroc_compute", _of_classes(_roc_of)),
    ("auroc:_multilabel_auroc_compute", _of_labels(_roc_of)),
    ("average_precision:_multiclass_average_precision_compute", _of_classes(_precision_of_classes)),
    ("average_precision:_multilabel_average_precision_compute", _of_labels(_precision_of_labels)),
):
    instead_of(f"functional.classification.{_place}", SAYS)(_make)
