"""True and false positives and negatives of classes, counted directly: C + N numbers instead of C times C."""

from __future__ import annotations

import torch
from torch import Tensor

from gapless.metrics.torchmetrics._checks import report
from gapless.metrics.torchmetrics._registry import Function, instead_of
from gapless.metrics.torchmetrics.replacements.counting import (
    IGNORED,
    OUT_OF_RANGE,
    count,
    count_checked,
    tally,
)

_STAT = "functional.classification.stat_scores"
Counts = tuple[Tensor, Tensor, Tensor, Tensor]

SMALL = 64
"""Up to so many classes, a C×C matrix is small and takes fewer steps than three counts."""


@instead_of(
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
        """True positives, false positives, true negatives, false negatives; int64, as the state has them."""
        keep = None if ignore_index is None else target != ignore_index
        if multidim_average == "samplewise" or top_k != 1:
            if top_k > 1:
                if preds.dim() != target.dim() + 1 or not refines:
                    return original(  # type: ignore[no-any-return]
                        preds, target, num_classes, top_k, average, multidim_average, ignore_index
                    )
                preds = _best_guess(preds, target, top_k)
            return _one_by_one(preds, target, num_classes, keep, multidim_average == "samplewise")
        preds, target = preds.flatten(), target.flatten()
        keep = keep if keep is None else keep.flatten()
        if average == "micro":
            return _all_in_one(preds, target, num_classes, keep)
        # in TorchMetrics' mapping of a pair to one number, so that labels out of range land where they do
        # there
        pairs = target.long() * num_classes + preds.long()
        if num_classes <= SMALL:
            pairs = pairs if keep is None else pairs.masked_fill_(~keep, IGNORED)
            cells = count_checked(pairs, num_classes**2, marked=keep is not None)
            return _of_matrix(cells.view(num_classes, num_classes))
        return _of_pairs(pairs, num_classes, keep)

    return update


def _of_matrix(cells: Tensor) -> Counts:
    tp = cells.diagonal()
    fp, fn = cells.sum(0) - tp, cells.sum(1) - tp
    return tp, fp, cells.sum() - (fp + fn + tp), fn


def _of_pairs(pairs: Tensor, c: int, keep: Tensor | None) -> Counts:
    """Counts per class (C,) of ``target * C + prediction`` (N,), with three tallies in one."""
    # slots 0 and C + 1 take what is out of range, C + 2 what is ignored
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
    there, guessed, tp = tally(torch.cat(slots), 3 * (c + 3)).view(3, c + 3).unbind()
    report(OUT_OF_RANGE, there[0] + there[c + 1])
    there, guessed, tp = there[1 : c + 1], guessed[1 : c + 1], tp[1 : c + 1]
    fp, fn = guessed - tp, there - tp
    return tp, fp, there.sum() - (fp + fn + tp), fn


def _all_in_one(preds: Tensor, target: Tensor, num_classes: int, keep: Tensor | None) -> Counts:
    right, wrong = preds == target, preds != target
    if keep is None:
        tp, miss = right.sum(), wrong.sum()
        total: Tensor | int = preds.numel()
    else:
        tp, miss, total = (right & keep).sum(), (wrong & keep).sum(), keep.sum()
    return tp, miss, num_classes * total - (miss + miss + tp), miss.clone()


def _best_guess(scores: Tensor, target: Tensor, top_k: int) -> Tensor:
    """The label to count (N, X): the target where it is among the `top_k` best scores (N, C, X), else the
    best.
    """
    best = torch.topk(scores, k=top_k, dim=1).indices
    return torch.where((best == target.unsqueeze(1)).any(1), target, best[:, 0])


def _one_by_one(
    preds: Tensor, target: Tensor, num_classes: int, keep: Tensor | None, samplewise: bool
) -> Counts:
    """Counts of labels (N, X), for all samples together (C,) or for each (N, C)."""
    inside = (target >= 0) & (target < num_classes) & (preds >= 0) & (preds < num_classes)
    report(OUT_OF_RANGE, ~inside if keep is None else ~inside & keep, asked=False)
    keep = inside if keep is None else inside & keep
    preds, target = preds.long(), target.long()
    if not samplewise:
        return _counts(preds.flatten(), target.flatten(), num_classes, keep.flatten())
    n = preds.shape[0]
    offset = num_classes * torch.arange(n, device=preds.device).view(n, *(1,) * (preds.dim() - 1))
    tp = count(preds + offset, n * num_classes, keep & (preds == target)).view(n, num_classes)
    fp = count(preds + offset, n * num_classes, keep).view(n, num_classes) - tp
    fn = count(target + offset, n * num_classes, keep).view(n, num_classes) - tp
    total = keep.reshape(n, -1).sum(1, keepdim=True)
    return tp, fp, total - (tp + fp + fn), fn


def _counts(preds: Tensor, target: Tensor, num_classes: int, keep: Tensor) -> Counts:
    """Counts per class (C,) of labels (N,) that are in range where `keep` is."""
    c = num_classes
    labels = torch.cat([preds, preds + c, target + 2 * c])
    tp, guessed, there = (
        count(labels, 3 * c, torch.cat([keep & (preds == target), keep, keep])).view(3, c).unbind()
    )
    fp, fn = guessed - tp, there - tp
    return tp.clone(), fp, keep.sum() - (fp + fn + tp), fn
