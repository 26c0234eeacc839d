"""Updates of single metrics that wait for a mask, or for the number of distinct values."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gapless.metrics.classification import ranking
from gapless.metrics.classification.hinge import shortfall
from gapless.metrics.regression.spearman import mean_ranks
from gapless.metrics.torchmetrics._constants import fill
from gapless.metrics.torchmetrics._registry import Function, replacement_for
from gapless.metrics.torchmetrics.replacements.matrices import as_scores

DIVISION_NOTE = "the result of a division by zero is filled in on the GPU"
MASK_NOTE = "masked values get weight 0 instead of being removed"
RANK_NOTE = "ranks are positions in the sorted values, without a list of distinct values"


@replacement_for("utilities.compute:_safe_divide", DIVISION_NOTE)
def _safe_divide(original: Function) -> Function:
    def divide(num: Tensor, denom: Tensor, zero_division: float | str = 0.0) -> Tensor:
        if not isinstance(zero_division, (float, int)):
            return original(num, denom, zero_division)  # type: ignore[no-any-return]
        num = num if num.is_floating_point() else num.float()
        denom = denom if denom.is_floating_point() else denom.float()
        return torch.where(denom != 0, num / denom, fill(zero_division, num.device, num.dtype))

    return divide


@replacement_for("functional.text.perplexity:_perplexity_update", MASK_NOTE)
def _perplexity(original: Function) -> Function:
    check = original.__globals__["_check_shape_and_type_consistency"]

    def update(preds: Tensor, target: Tensor, ignore_index: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the sum of negative log probabilities of targets (…,) under scores (…, vocabulary),
        and their number.
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


@replacement_for("functional.classification.hinge:_binary_hinge_loss_update", MASK_NOTE)
def _binary_hinge(original: Function) -> Function:
    def update(preds: Tensor, target: Tensor, squared: bool) -> tuple[Tensor, Tensor]:
        return _sum_and_count(shortfall(preds, target.bool(), True, squared))

    return update


@replacement_for("functional.classification.hinge:_multiclass_hinge_loss_update", MASK_NOTE)
def _multiclass_hinge(original: Function) -> Function:
    normalize = original.__globals__.get("normalize_logits_if_needed", as_scores)

    def update(
        preds: Tensor, target: Tensor, squared: bool, multiclass_mode: str = "crammer-singer"
    ) -> tuple[Tensor, Tensor]:
        """Return the sum of losses and their number, for scores (N, C) and targets (N,)."""
        preds = normalize(preds, "softmax")
        hot = target.unsqueeze(1) == torch.arange(max(2, preds.shape[1]), device=preds.device)
        alone = multiclass_mode != "crammer-singer"
        short = shortfall(preds, hot, alone, squared)
        return _sum_and_count(short if alone else short.squeeze(1))

    return update


def _sum_and_count(short: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of hinge losses (N,) or (N, C), and N."""
    return short.sum(0), fill(short.shape[0], short.device)


def _ranking_factory(measure: ranking.RankingMeasure) -> Callable[[Function], Function]:
    def make(original: Function) -> Function:
        def update(preds: Tensor, target: Tensor) -> tuple[Tensor, Tensor | int]:
            """Scores and targets (N, L): the sum over samples, and over how many."""
            total, samples = measure(preds, target)
            return total.to(torch.float32), samples

        return update

    return make


for _name, _measure in (
    ("_multilabel_coverage_error_update", ranking.coverage),
    ("_multilabel_ranking_average_precision_update", ranking.ranked_precision),
    ("_multilabel_ranking_loss_update", ranking.ranking_loss),
):
    replacement_for(f"functional.classification.ranking:{_name}", RANK_NOTE)(_ranking_factory(_measure))


@replacement_for("functional.regression.spearman:_rank_data", RANK_NOTE)
def _mean_ranks(original: Function) -> Function:
    in_dtype_of_data = "_find_repeats" in original.__code__.co_names  # before version 1.7

    def rank(data: Tensor) -> Tensor:
        """Return ranks (N,) from 1 as float32; equal values share their mean rank."""
        return mean_ranks(data.contiguous(), None).to(data.dtype if in_dtype_of_data else torch.float32)

    return rank


@replacement_for("functional.segmentation.generalized_dice:_generalized_dice_update", MASK_NOTE)
def _generalized_dice(original: Function) -> Function:
    form = original.__globals__["_segmentation_inputs_format"]

    def update(
        preds: Tensor,
        target: Tensor,
        num_classes: int,
        include_background: bool,
        weight_type: str = "square",
        input_format: str = "one-hot",
    ) -> tuple[Tensor, Tensor]:
        """Return numerators and denominators (N, C) of the score."""
        if weight_type not in ("square", "simple"):
            return original(  # type: ignore[no-any-return]
                preds, target, num_classes, include_background, weight_type, input_format
            )
        preds, target = form(preds, target, include_background, num_classes, input_format)
        space = list(range(2, target.ndim))
        actual, predicted = target.sum(space), preds.sum(space)
        both = (preds * target).sum(space)
        weights = 1.0 / (actual if weight_type == "simple" else actual**2)
        absent = weights.isinf()
        weights = weights.masked_fill(absent, 0)
        # in TorchMetrics' layout of the weights of absent classes
        largest = weights.amax(0).repeat(len(weights), 1).T.reshape(weights.shape)
        weights = torch.where(absent, largest, weights)
        return 2.0 * both * weights, (predicted + actual) * weights

    return update
