"""Exact areas under curves at a fixed size: all scores are sorted, and only the last of equal ones counts.

TorchMetrics reduces the curve to its distinct thresholds, class by class, with a wait for the number of each.
The area does not need them. Curves themselves do, because users see their length.
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
from gapless.metrics.torchmetrics._registry import Function, replacement_for
from gapless.metrics.torchmetrics._relink import RELINKER

NOTE = "exact areas are computed at a fixed size, all classes at once, with one check for empty classes"
MAX_SCORES_AT_ONCE = 2**24
"""Scores sorted at once; more are processed in chunks of columns, to bound memory."""

AreaFunction = Callable[[CumulativeCounts], Tensor]


def _roc_areas(rising: CumulativeCounts) -> Tensor:
    """Return areas (C,); `nan` without positives or without negatives."""
    fpr, tpr = (
        pad(counts / total.unsqueeze(1), (1, 0))
        for counts, total in ((rising.fps, rising.negatives), (rising.tps, rising.positives))
    )
    return trapezoid_area(fpr, tpr)


def _average_precision(rising: CumulativeCounts) -> Tensor:
    """Return areas (C,); `nan` without positives."""
    return average_precision(rising, missing=torch.nan)


def _column_areas(
    scores: Tensor, positive: Tensor, keep: Tensor | None, measure: AreaFunction
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the areas, positives and negatives of each column (C,).

    Scores are (N, C), with masks of the same shape: which targets are positive, and which count at all.
    """
    keep = torch.ones_like(positive) if keep is None else keep
    columns = [
        tensor.T.split(max(1, MAX_SCORES_AT_ONCE // len(scores))) for tensor in (scores, positive, keep)
    ]
    with torch.no_grad():
        curves = (cumulate(*part) for part in zip(*columns, strict=True))  # one after the other
        results = [(measure(curve), curve.positives, curve.negatives) for curve in curves]
    areas, hits, misses = (torch.cat(parts) for parts in zip(*results, strict=True))
    return areas, hits, misses


def _is_exact(state: Any, thresholds: Any) -> bool:
    """Whether the curve is exact: without thresholds, and with a non-empty state of scores."""
    return thresholds is None and not isinstance(state, Tensor) and state[0].numel() > 0


def _average_areas(areas: Tensor, hits: Tensor, average: str | None) -> Tensor:
    """Average areas (C,) as `average` says, leaving out those that are `nan`."""
    if average == "macro":
        return areas.nanmean()
    if average == "weighted":
        missing = areas.isnan()
        weights = hits.float().masked_fill(missing, 0)
        return (areas.masked_fill(missing, 0) * (weights / weights.sum().clamp(min=1))).sum()
    return areas


@replacement_for("functional.classification.auroc:_binary_auroc_compute", NOTE)
def _binary_auroc(original: Function) -> Function:
    def compute(state: Any, thresholds: Any, max_fpr: float | None = None, pos_label: int = 1) -> Tensor:
        if _is_exact(state, thresholds) and max_fpr in (None, 1):
            scores, target = state[0].reshape(-1, 1), state[1].reshape(-1, 1)
            areas, hits, misses = _column_areas(scores, target == pos_label, None, _roc_areas)
            if bool((hits > 0) & (misses > 0)):
                return areas.squeeze(0)
        return RELINKER.relink_replaced(original)(state, thresholds, max_fpr, pos_label)  # type: ignore[no-any-return]

    return compute


@replacement_for("functional.classification.average_precision:_binary_average_precision_compute", NOTE)
def _binary_precision(original: Function) -> Function:
    def compute(state: Any, thresholds: Any) -> Tensor:
        if _is_exact(state, thresholds):
            scores, target = state[0].reshape(-1, 1), state[1].reshape(-1, 1)
            areas, hits, _ = _column_areas(scores, target == 1, None, _average_precision)
            if bool(hits > 0):
                return areas.squeeze(0)
        return RELINKER.relink_replaced(original)(state, thresholds)  # type: ignore[no-any-return]

    return compute


SUPPORTED_AVERAGES = ("macro", "weighted", "none", None)


def _average_roc_area(scores: Tensor, positive: Tensor, keep: Tensor | None, average: str | None) -> Tensor:
    """Average the areas under ROC; 0 for columns that have no positives or no negatives."""
    areas, hits, misses = _column_areas(scores, positive, keep, _roc_areas)
    missing = (hits == 0) | (misses == 0)
    if bool(missing.any()):
        rank_zero_warn("No positive or no negative samples for some classes or labels: their AUROC is 0")
    return _average_areas(areas.masked_fill(missing, 0), hits, average)


def _multiclass_precision(scores: Tensor, positive: Tensor, keep: None, average: str | None) -> Tensor:
    """Average the average precisions; classes without positives are `nan` and left out.

    They are 0 instead where all targets are the first class: TorchMetrics takes that for targets of 0 and 1.
    """
    areas, hits, _ = _column_areas(scores, positive, keep, _average_precision)
    missing = hits == 0
    some, all_first = torch.stack([missing.any(), positive[:, 0].all()]).tolist()
    if some:
        rank_zero_warn(f"No positive samples for some classes: average precision without them ({average})")
    return _average_areas(areas.masked_fill(missing, 0) if all_first else areas, hits, average)


def _multilabel_precision(
    scores: Tensor, positive: Tensor, keep: Tensor | None, average: str | None
) -> Tensor:
    """Average the average precisions; 0 for labels without positives."""
    areas, hits, _ = _column_areas(scores, positive, keep, _average_precision)
    missing = hits == 0
    if bool(missing.any()):
        rank_zero_warn("No positive samples for some labels: their average precision is 0")
    return _average_areas(areas.masked_fill(missing, 0), hits, average)


def _multiclass_factory(area: Callable[..., Tensor]) -> Callable[[Function], Function]:
    def make(original: Function) -> Function:
        def compute(
            state: Any, num_classes: int, average: str | None = "macro", thresholds: Any = None
        ) -> Tensor:
            if _is_exact(state, thresholds) and average in SUPPORTED_AVERAGES:
                positive = state[1].unsqueeze(1) == torch.arange(num_classes, device=state[1].device)
                return area(state[0], positive, None, average)
            return RELINKER.relink_replaced(original)(state, num_classes, average, thresholds)  # type: ignore[no-any-return]

        return compute

    return make


def _multilabel_factory(area: Callable[..., Tensor]) -> Callable[[Function], Function]:
    def make(original: Function) -> Function:
        def compute(
            state: Any, num_labels: int, average: Any, thresholds: Any, ignore_index: int | None = None
        ) -> Tensor:
            if _is_exact(state, thresholds) and average in SUPPORTED_AVERAGES:
                keep = None if ignore_index is None else state[1] != ignore_index
                return area(state[0], state[1] == 1, keep, average)
            args = (state, num_labels, average, thresholds, ignore_index)
            return RELINKER.relink_replaced(original)(*args)  # type: ignore[no-any-return]

        return compute

    return make


for _place, _make in (
    ("auroc:_multiclass_auroc_compute", _multiclass_factory(_average_roc_area)),
    ("auroc:_multilabel_auroc_compute", _multilabel_factory(_average_roc_area)),
    ("average_precision:_multiclass_average_precision_compute", _multiclass_factory(_multiclass_precision)),
    ("average_precision:_multilabel_average_precision_compute", _multilabel_factory(_multilabel_precision)),
):
    replacement_for(f"functional.classification.{_place}", NOTE)(_make)
