"""True and false positives and negatives of classes, counted directly: C + N numbers instead of C times C."""

from __future__ import annotations

import torch
from torch import Tensor

from gapless.metrics.torchmetrics._checks import report
from gapless.metrics.torchmetrics._registry import Function, instead_of
from gapless.metrics.torchmetrics.replacements.counting import OUT_OF_RANGE, count

_STAT = "functional.classification.stat_scores"
Counts = tuple[Tensor, Tensor, Tensor, Tensor]


@instead_of(
    f"{_STAT}:_multiclass_stat_scores_update",
    "classes are counted with C numbers instead of a C×C matrix, ignored targets with weight 0",
)
def _multiclass(original: Function) -> Function:
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
                if preds.dim() != target.dim() + 1:
                    return original(  # type: ignore[no-any-return]
                        preds, target, num_classes, top_k, average, multidim_average, ignore_index
                    )
                preds = _best_guess(preds, target, top_k)
            return _one_by_one(preds, target, num_classes, keep, multidim_average == "samplewise")
        preds, target = preds.flatten(), target.flatten()
        keep = keep if keep is None else keep.flatten()
        if average == "micro":
            return _all_in_one(preds, target, num_classes, keep)
        # in TorchMetrics' mapping of a pair to one number, so that labels out of range land where they do there
        pairs = target.long() * num_classes + preds.long()
        inside = (pairs >= 0) & (pairs < num_classes**2)
        report(OUT_OF_RANGE, ~inside if keep is None else ~inside & keep)
        keep = inside if keep is None else inside & keep
        return _counts(pairs % num_classes, pairs // num_classes, num_classes, keep)

    return update


def _all_in_one(preds: Tensor, target: Tensor, num_classes: int, keep: Tensor | None) -> Counts:
    right, wrong = preds == target, preds != target
    if keep is None:
        tp, miss = right.sum(), wrong.sum()
        total: Tensor | int = preds.numel()
    else:
        tp, miss, total = (right & keep).sum(), (wrong & keep).sum(), keep.sum()
    return tp, miss, num_classes * total - (miss + miss + tp), miss.clone()


def _best_guess(scores: Tensor, target: Tensor, top_k: int) -> Tensor:
    """The label to count (N, X): the target where it is among the `top_k` best scores (N, C, X), else the best."""
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
    tp, guessed, there = count(labels, 3 * c, torch.cat([keep & (preds == target), keep, keep])).view(3, c).unbind()
    fp, fn = guessed - tp, there - tp
    return tp.clone(), fp, keep.sum() - (fp + fn + tp), fn
