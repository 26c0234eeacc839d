"""Ranks by place in an ordered row: their number is known, that of different values is not."""

from __future__ import annotations

import torch
from torch import Tensor

from gapless.metrics.torchmetrics._registry import Function, instead_of

SAYS = "ranks are places in the ordered values, without the list of different ones"


@instead_of("functional.regression.spearman:_rank_data", SAYS)
def _mean_ranks(original: Function) -> Function:
    in_dtype_of_data = "_find_repeats" in original.__code__.co_names  # before version 1.7

    def rank(data: Tensor) -> Tensor:
        """Ranks (N,) from 1, float32; equal values share their mean rank."""
        data = data.contiguous()
        ordered = data.sort().values
        below = torch.searchsorted(ordered, data, right=False)
        upto = torch.searchsorted(ordered, data, right=True)
        ranks = (below + upto + 1) / 2
        return ranks.to(data.dtype) if in_dtype_of_data else ranks

    return rank


def _upto(values: Tensor, among: Tensor) -> Tensor:
    """For each of `values` (N, L), how many of `among` (N, M) in its row are not above it."""
    return torch.searchsorted(among.sort(1).values.contiguous(), values.contiguous(), right=True)


@instead_of("functional.classification.ranking:_multilabel_ranking_average_precision_update", SAYS)
def _ranking_average_precision(original: Function) -> Function:
    def update(preds: Tensor, target: Tensor) -> tuple[Tensor, int]:
        """Scores and targets (N, L): of the labels ranked not below a relevant one, which part is relevant.

        The sum over samples of the mean over their relevant labels, and N. Samples with no relevant label, or
        only such, count 1.
        """
        n, labels = preds.shape
        descending = -preds
        relevant = target == 1
        hits = relevant.sum(1, keepdim=True)
        among = descending.masked_fill(~relevant, float("inf"))
        share = torch.minimum(_upto(descending, among), hits) / _upto(descending, descending)
        score = share.masked_fill(~relevant, 0).sum(1) / hits.squeeze(1)
        whole = ((hits == 0) | (hits == labels)).squeeze(1)
        return score.masked_fill(whole, 1).sum(), n

    return update
