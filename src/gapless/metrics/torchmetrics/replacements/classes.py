"""Count true and false positives and negatives of classes directly: C + N numbers instead of C times C."""

from __future__ import annotations

import torch
from torch import Tensor

from gapless.metrics.torchmetrics._checks import report
from gapless.metrics.torchmetrics._registry import Function, replacement_for
from gapless.metrics.torchmetrics.replacements.counting import (
    IGNORED,
    OUT_OF_RANGE,
    count,
    count_checked,
    count_in_range,
)

_STAT = "functional.classification.stat_scores"
Counts = tuple[Tensor, Tensor, Tensor, Tensor]

MAX_MATRIX_CLASSES = 64
"""Up to this many classes, a C×C matrix is small and takes fewer steps than three counts."""


@replacement_for(
    f"{_STAT}:_multiclass_stat_scores_update",
    "classes are counted with C numbers instead of a C×C matrix, ignored targets with weight 0",
)
def _multiclass(original: Function) -> Function:
    refines = "_refine_preds_oh" in original.__code__.co_names  # not before version 1.6

    def update(
        preds: Tensor,
        target: Tensor,
        num_classes: int,
        top_k: int = 1,
        average: str | None = "macro",
        multidim_average: str = "global",
        ignore_index: int | None = None,
    ) -> Counts:
        """Return true positives, false positives, true negatives and false negatives as int64."""
        keep = None if ignore_index is None else target != ignore_index
        if multidim_average == "samplewise" or top_k != 1:
            if top_k > 1:
                if preds.dim() != target.dim() + 1 or not refines:
                    return original(  # type: ignore[no-any-return]
                        preds, target, num_classes, top_k, average, multidim_average, ignore_index
                    )
                preds = _top_k_labels(preds, target, top_k)
            return _masked_counts(preds, target, num_classes, keep, multidim_average == "samplewise")
        preds, target = preds.flatten(), target.flatten()
        keep = keep if keep is None else keep.flatten()
        if average == "micro":
            return _micro_counts(preds, target, num_classes, keep)
        # TorchMetrics' index of a pair, so that labels out of range are counted in the same cells
        pairs = target.long() * num_classes + preds.long()
        if num_classes <= MAX_MATRIX_CLASSES:
            pairs = pairs if keep is None else pairs.masked_fill_(~keep, IGNORED)
            cells = count_checked(pairs, num_classes**2, marked=keep is not None)
            return _counts_from_matrix(cells.view(num_classes, num_classes))
        return _counts_from_pairs(pairs, num_classes, keep)

    return update


def _counts_from_matrix(cells: Tensor) -> Counts:
    """Return the counts per class (C,) of a confusion matrix (C, C)."""
    tp = cells.diagonal()
    fp, fn = cells.sum(0) - tp, cells.sum(1) - tp
    return tp, fp, cells.sum() - (fp + fn + tp), fn


def _counts_from_pairs(pairs: Tensor, c: int, keep: Tensor | None) -> Counts:
    """Return counts per class (C,) from ``target * C + prediction`` (N,), with three histograms in one."""
    # slots 0 and C + 1 count labels out of range, C + 2 ignored ones
    pairs = pairs.clamp_(-1, c * c)
    pairs = pairs if keep is None else pairs.masked_fill_(~keep, c * c + c)
    target = torch.div(pairs, c, rounding_mode="floor")
    preds = pairs.remainder_(c)
    hit = preds == target
    outside = target.clamp(0, c - 1) != target
    slots = [
        target + 1,
        preds.masked_fill(outside, -1).add_(c + 4),
        target.masked_fill(~hit, -1).add_(2 * c + 7),
    ]
    actual, predicted, tp = count_in_range(torch.cat(slots), 3 * (c + 3)).view(3, c + 3).unbind()
    report(OUT_OF_RANGE, actual[0] + actual[c + 1])
    actual, predicted, tp = actual[1 : c + 1], predicted[1 : c + 1], tp[1 : c + 1]
    fp, fn = predicted - tp, actual - tp
    return tp, fp, actual.sum() - (fp + fn + tp), fn


def _micro_counts(preds: Tensor, target: Tensor, num_classes: int, keep: Tensor | None) -> Counts:
    """Return the counts of all classes together, each 0-dim."""
    right, wrong = preds == target, preds != target
    if keep is None:
        tp, miss = right.sum(), wrong.sum()
        total: Tensor | int = preds.numel()
    else:
        tp, miss, total = (right & keep).sum(), (wrong & keep).sum(), keep.sum()
    return tp, miss, num_classes * total - (miss + miss + tp), miss.clone()


def _top_k_labels(scores: Tensor, target: Tensor, top_k: int) -> Tensor:
    """Return the labels to count (N, X): the target if among the `top_k` best scores (N, C, X), else the
    best.
    """
    best = torch.topk(scores, k=top_k, dim=1).indices
    return torch.where((best == target.unsqueeze(1)).any(1), target, best[:, 0])


def _masked_counts(
    preds: Tensor, target: Tensor, num_classes: int, keep: Tensor | None, samplewise: bool
) -> Counts:
    """Return counts of labels (N, X), for all samples together (C,) or for each (N, C)."""
    inside = (target >= 0) & (target < num_classes) & (preds >= 0) & (preds < num_classes)
    report(OUT_OF_RANGE, ~inside if keep is None else ~inside & keep, requested=False)
    keep = inside if keep is None else inside & keep
    preds, target = preds.long(), target.long()
    if not samplewise:
        return _class_counts(preds.flatten(), target.flatten(), num_classes, keep.flatten())
    n = preds.shape[0]
    offset = num_classes * torch.arange(n, device=preds.device).view(n, *(1,) * (preds.dim() - 1))
    tp = count(preds + offset, n * num_classes, keep & (preds == target)).view(n, num_classes)
    fp = count(preds + offset, n * num_classes, keep).view(n, num_classes) - tp
    fn = count(target + offset, n * num_classes, keep).view(n, num_classes) - tp
    total = keep.reshape(n, -1).sum(1, keepdim=True)
    return tp, fp, total - (tp + fp + fn), fn


def _class_counts(preds: Tensor, target: Tensor, num_classes: int, keep: Tensor) -> Counts:
    """Return counts per class (C,) of labels (N,) that are in range where `keep` is true."""
    c = num_classes
    labels = torch.cat([preds, preds + c, target + 2 * c])
    tp, predicted, actual = (
        count(labels, 3 * c, torch.cat([keep & (preds == target), keep, keep])).view(3, c).unbind()
    )
    fp, fn = predicted - tp, actual - tp
    return tp.clone(), fp, keep.sum() - (fp + fn + tp), fn
