"""Binned curves from a binary search of each score among the thresholds and a count of positions.

TorchMetrics compares each score with each threshold; this takes N·log(T) work and N + T memory for the same
integers.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from gapless.metrics.torchmetrics._checks import report
from gapless.metrics.torchmetrics._registry import Function, replacement_for
from gapless.metrics.torchmetrics.replacements.counting import IGNORED, OUT_OF_RANGE, count
from gapless.metrics.torchmetrics.replacements.matrices import mark_ignored, select_rows

_CURVE = "functional.classification.precision_recall_curve"
NOTE = "binned curves count positions among the thresholds; ignored targets are not removed but not counted"

MAX_CHECKED_SCORES = 50_000
"""With more scores than this, TorchMetrics treats every binary target other than 1 as 0."""


def count_reaching(scores: Tensor, column: Tensor | int, columns: int, thresholds: Tensor) -> Tensor:
    """Count, for each threshold and column, the scores that are at least the threshold: int64 (T, columns).

    `scores` are (N,) or (N, columns); `column` is the column of each, or `columns` for those that do not
    count. A `nan` reaches no threshold. Thresholds need not be sorted.
    """
    ordered, order = thresholds.sort()
    places = torch.searchsorted(ordered, scores.to(ordered.dtype).contiguous(), right=True)
    places = places.masked_fill(scores.isnan(), 0)
    t = thresholds.numel()
    counts = count(places * (columns + 1) + column, (t + 1) * (columns + 1)).view(t + 1, columns + 1)
    reached = counts.flip(0).cumsum(0).flip(0)[1:, :columns]
    return torch.empty_like(reached).index_copy_(0, order, reached)


def _threshold_cells(scores: Tensor, positive: Tensor, keep: Tensor, thresholds: Tensor) -> Tensor:
    """Return counts (T, columns, 2, 2) by [target, prediction] of scores, targets and mask (N, columns)."""
    columns = scores.shape[1]
    kinds = torch.arange(columns, device=scores.device) * 2 + positive.long()
    kinds = torch.where(keep, kinds, 2 * columns)
    over = count_reaching(scores, kinds, 2 * columns, thresholds).view(-1, columns, 2)
    totals = count(kinds, 2 * columns).view(1, columns, 2)
    return torch.stack([totals - over, over], dim=-1)


@replacement_for(f"{_CURVE}:_binary_precision_recall_curve_format", NOTE, group="curves")
def _binary_format(original: Function) -> Function:
    takes = inspect.signature(original).parameters

    def form(
        preds: Tensor,
        target: Tensor,
        thresholds: Any = None,
        ignore_index: int | None = None,
        normalization: str | None = "sigmoid",
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return scores and targets (N,) with ignored targets marked; removed only if kept as a list."""
        more = (normalization,) if "normalization" in takes else ()  # from version 1.8 on
        if ignore_index is None:
            return original(preds, target, thresholds, None, *more)  # type: ignore[no-any-return]
        preds, target = preds.flatten(), target.flatten()
        keep = target != ignore_index
        preds, target = (
            select_rows(keep, preds, target) if thresholds is None else mark_ignored(preds, target, keep)
        )
        preds, _, thresholds = original(preds, target, thresholds, None, *more)
        return preds, target, thresholds

    return form


@replacement_for(f"{_CURVE}:_binary_precision_recall_curve_update", NOTE, group="curves")
def _binary_update(original: Function) -> Function:
    def update(preds: Tensor, target: Tensor, thresholds: Tensor | None) -> Tensor | tuple[Tensor, Tensor]:
        """Return the cells (T, 2, 2); scores and targets as they are if there are no thresholds.

        Other targets than 0 and 1 are reported later instead of raising.
        """
        if thresholds is None:
            return preds, target
        target = target.long()
        keep = target > IGNORED // 2
        if preds.numel() <= MAX_CHECKED_SCORES:
            inside = (target == 0) | (target == 1)
            report(OUT_OF_RANGE, keep & ~inside)
            keep = keep & inside
        cells = _threshold_cells(
            preds.unsqueeze(1), (target == 1).unsqueeze(1), keep.unsqueeze(1), thresholds
        )
        return cells.squeeze(1)

    return update


@replacement_for(f"{_CURVE}:_multiclass_precision_recall_curve_format", NOTE, group="curves")
def _multiclass_format(original: Function) -> Function:
    def form(
        preds: Tensor,
        target: Tensor,
        num_classes: int,
        thresholds: Any = None,
        ignore_index: int | None = None,
        average: str | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return scores (N, C), or (N·C,) for micro averages, and targets with ignored ones marked."""
        if ignore_index is None:
            return original(preds, target, num_classes, thresholds, None, average)  # type: ignore[no-any-return]
        rows = preds.transpose(0, 1).reshape(num_classes, -1).T
        target = target.flatten()
        keep = target != ignore_index
        if thresholds is None:
            rows, target = select_rows(keep, rows, target)
            return original(rows, target, num_classes, None, None, average)  # type: ignore[no-any-return]
        rows, marked = mark_ignored(rows, target, keep)
        rows, _, thresholds = original(
            rows, target.masked_fill(~keep, 0), num_classes, thresholds, None, None
        )
        if average == "micro":
            hot = marked.unsqueeze(1) == torch.arange(num_classes, device=marked.device)
            return rows.flatten(), hot.long().masked_fill(~keep.unsqueeze(1), IGNORED).flatten(), thresholds
        return rows, marked, thresholds

    return form


@replacement_for(f"{_CURVE}:_multiclass_precision_recall_curve_update", NOTE, group="curves")
def _multiclass_update(original: Function) -> Function:
    binary = _binary_update(original)

    def update(
        preds: Tensor, target: Tensor, num_classes: int, thresholds: Tensor | None, average: str | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the cells (T, C, 2, 2), or (T, 2, 2) for micro averages; classes out of range are reported
        later instead of raising."""
        if thresholds is None:
            return preds, target
        if average == "micro":
            return binary(preds, target, thresholds)  # type: ignore[no-any-return]
        target = target.long()
        inside = (target >= 0) & (target < num_classes)
        report(OUT_OF_RANGE, ~inside & (target > IGNORED // 2))
        positive = target.unsqueeze(1) == torch.arange(num_classes, device=target.device)
        return _threshold_cells(preds, positive, inside.unsqueeze(1), thresholds)

    return update


@replacement_for(f"{_CURVE}:_multilabel_precision_recall_curve_update", NOTE, group="curves")
def _multilabel_update(original: Function) -> Function:
    def update(
        preds: Tensor, target: Tensor, num_labels: int, thresholds: Tensor | None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the cells (T, labels, 2, 2); ignored targets are large negative numbers."""
        if thresholds is None:
            return preds, target
        inside = (target == 0) | (target == 1)
        report(OUT_OF_RANGE, ~inside & (target > -4 * num_labels * thresholds.numel()))
        return _threshold_cells(preds, target == 1, inside, thresholds)

    return update
