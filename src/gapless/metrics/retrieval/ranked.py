"""Retrieval metrics that depend on the order of documents."""

from __future__ import annotations

import torch
from torch import Tensor

from gapless.metrics.retrieval.base import TopKMetric, divide_or_zero
from gapless.metrics.retrieval.queries import Ranking, rank_documents


class RetrievalMAP(TopKMetric):
    """Mean average precision: the mean of the precision at each relevant document among the `top_k` best.

    Documents with a score of 0 or less count as not retrieved.
    """

    torchmetrics_file = "average_precision"
    function = "retrieval_average_precision"

    def scores(self, ranking: Ranking) -> Tensor:
        hits = self.gains(ranking) > 0
        precision = ranking.count_from_top(hits).double() / (ranking.rank + 1)
        return divide_or_zero(ranking.sum_per_query(precision * hits), ranking.sum_per_query(hits.double()))


class RetrievalMRR(TopKMetric):
    """Mean reciprocal rank of the first relevant document among the `top_k` best."""

    torchmetrics_file = "reciprocal_rank"
    function = "retrieval_reciprocal_rank"

    def scores(self, ranking: Ranking) -> Tensor:
        hits = self.gains(ranking) > 0
        first = hits & (ranking.count_from_top(hits) == 1)
        return ranking.sum_per_query(first.double() / (ranking.rank + 1))


class RetrievalNormalizedDCG(TopKMetric):
    """The discounted cumulative gain, divided by that of the best possible order.

    Targets may be any degrees of relevance. Documents of equal scores share their discounts.
    """

    torchmetrics_file = "ndcg"
    binary = False

    def scores(self, ranking: Ranking) -> Tensor:
        best = rank_documents(*ranking[:1], *ranking[2:], key=ranking.relevance)
        gain = ranking.sum_per_query(ranking.relevance.double() * self._shared_discount(ranking))
        return divide_or_zero(gain, best.sum_per_query(best.relevance.double() * self._discount(best)))

    def _discount(self, ranking: Ranking) -> Tensor:
        """Return the discount of each document by its rank, ``[N]``; 0 outside the top k."""
        return self.is_in_top_k(ranking) / torch.log2(ranking.rank.double() + 2)

    def _shared_discount(self, ranking: Ranking) -> Tensor:
        """Return the discounts, averaged over documents of equal scores, ``[N]``."""
        new = ranking.rank == 0
        new[1:] |= ranking.score[1:] != ranking.score[:-1]
        group = new.cumsum(0) - 1
        discount = self._discount(ranking)
        total = torch.zeros_like(discount).scatter_add_(0, group, discount)
        number = torch.zeros_like(discount).scatter_add_(0, group, torch.ones_like(discount))
        return (total / number)[group]
