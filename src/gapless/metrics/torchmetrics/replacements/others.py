"""Updates of single metrics that wait on a mask."""

from __future__ import annotations

import torch
from torch import Tensor

from gapless.metrics.torchmetrics._constants import fill
from gapless.metrics.torchmetrics._registry import Function, instead_of

MASKS = "masked values are given weight 0, not cut out"


@instead_of("functional.text.perplexity:_perplexity_update", MASKS)
def _perplexity(original: Function) -> Function:
    check = original.__globals__["_check_shape_and_type_consistency"]

    def update(preds: Tensor, target: Tensor, ignore_index: int | None = None) -> tuple[Tensor, Tensor]:
        """Sum of negative log probabilities of the targets (…,) under scores (…, vocabulary), and their
        number.
        """
        check(preds, target)
        probs = torch.softmax(preds.reshape(-1, preds.shape[-1]), dim=1)
        target = target.reshape(-1)
        keep = None if ignore_index is None else target != ignore_index
        chosen = target if keep is None else target.masked_fill(~keep, 0)
        likely = probs.gather(1, chosen.unsqueeze(1)).squeeze(1)
        if keep is None:
            return -likely.log().sum(), fill(target.numel(), target.device)
        return -likely.masked_fill(~keep, 1).log().sum(), keep.sum()

    return update


@instead_of("functional.classification.hinge:_binary_hinge_loss_update", MASKS)
def _binary_hinge(original: Function) -> Function:
    def update(preds: Tensor, target: Tensor, squared: bool) -> tuple[Tensor, Tensor]:
        return _measures(torch.where(target.bool(), preds, -preds), squared)

    return update


@instead_of("functional.classification.hinge:_multiclass_hinge_loss_update", MASKS)
def _multiclass_hinge(original: Function) -> Function:
    normalize = original.__globals__["normalize_logits_if_needed"]

    def update(
        preds: Tensor, target: Tensor, squared: bool, multiclass_mode: str = "crammer-singer"
    ) -> tuple[Tensor, Tensor]:
        """Scores (N, C), targets (N,)."""
        preds = normalize(preds, "softmax")
        hot = target.unsqueeze(1) == torch.arange(max(2, preds.shape[1]), device=preds.device)
        if multiclass_mode != "crammer-singer":
            return _measures(torch.where(hot, preds, -preds), squared)
        own = preds.masked_fill(~hot, float("-inf")).amax(1)
        return _measures(own - preds.masked_fill(hot, float("-inf")).amax(1), squared)

    return update


def _measures(margin: Tensor, squared: bool) -> tuple[Tensor, Tensor]:
    """The sum of hinge losses of margins (N,) or (N, C), and N."""
    measures = (1 - margin).clamp(min=0)
    if squared:
        measures = measures.pow(2)
    return measures.sum(0), fill(margin.shape[0], margin.device)


@instead_of("functional.classification.ranking:_multilabel_coverage_error_update", MASKS)
def _coverage(original: Function) -> Function:
    def update(preds: Tensor, target: Tensor) -> tuple[Tensor, int]:
        """Scores and targets (N, L): for each sample, how deep its lowest relevant score lies."""
        lifted = preds + torch.where(target == 0, preds.min().abs() + 10, torch.zeros_like(preds))
        depth = (preds >= lifted.amin(1).unsqueeze(1)).sum(1).to(torch.float32)
        return depth.sum(), depth.numel()

    return update


@instead_of("functional.classification.ranking:_multilabel_ranking_loss_update", MASKS)
def _ranking_loss(original: Function) -> Function:
    def update(preds: Tensor, target: Tensor) -> tuple[Tensor, Tensor | int]:
        """Scores and targets (N, L); samples with no relevant label, or only such, have no loss."""
        n, labels = preds.shape
        relevant = target == 1
        hits = relevant.sum(1)
        counted = (hits > 0) & (hits < labels)
        places = preds.argsort(1).argsort(1)
        per_label = ((labels - places) * relevant).to(torch.float32)
        loss = (per_label.sum(1) - 0.5 * hits * (hits + 1)) / (hits * (labels - hits))
        # where nothing counts, TorchMetrics takes one sample for all
        return loss.masked_fill(~counted, 0).sum(), torch.where(counted.any(), n, 1)

    return update
