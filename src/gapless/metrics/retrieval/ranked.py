"""Scores of the order in which documents were found."""

from __future__ import annotations

import torch
from torch import Tensor

from gapless.metrics.retrieval.base import CutOff, share
from gapless.metrics.retrieval.queries import Ranking, ranked


class RetrievalMAP(CutOff):
    """The mean average precision: of the precision at each relevant document among the `top_k` best.

    Documents with a score of 0 or less count as not found.
    """

    torchmetrics_file = "average_precision"
    function = "retrieval_average_precision"

    def scores(self, ranking: Ranking) -> Tensor:
        hits = self.gained(ranking) > 0
        precision = ranking.above(hits).double() / (ranking.rank + 1)
        return share(ranking.sums(precision * hits), ranking.sums(hits.double()))


class RetrievalMRR(CutOff):
    """The mean reciprocal rank: of the best relevant document among the `top_k` best."""

    torchmetrics_file = "reciprocal_rank"
    function = "retrieval_reciprocal_rank"

    def scores(self, ranking: Ranking) -> Tensor:
        hits = self.gained(ranking) > 0
        first = hits & (ranking.above(hits) == 1)
        return ranking.sums(first.double() / (ranking.rank + 1))


class RetrievalNormalizedDCG(CutOff):
    """The discounted cumulative gain in shares of that of the best order.

    Targets may be any degrees of relevance. Documents of the same score share their places.
    """

    torchmetrics_file = "ndcg"
    binary = False

    def scores(self, ranking: Ranking) -> Tensor:
        best = ranked(*ranking[:1], *ranking[2:], by=ranking.relevance)
        gain = ranking.sums(ranking.relevance.double() * self._shared_discount(ranking))
        return share(gain, best.sums(best.relevance.double() * self._discount(best)))

    def _discount(self, ranking: Ranking) -> Tensor:
        """``[N]``: what a document counts at its place."""
        return self.taken(ranking) / torch.log2(ranking.rank.double() + 2)

    def _shared_discount(self, ranking: Ranking) -> Tensor:
        """The same, averaged over the documents of the same score."""
        new = ranking.rank == 0
        new[1:] |= ranking.score[1:] != ranking.score[:-1]
        group = new.cumsum(0) - 1
        discount = self._discount(ranking)
        total = torch.zeros_like(discount).scatter_add_(0, group, discount)
        number = torch.zeros_like(discount).scatter_add_(0, group, torch.ones_like(discount))
        return (total / number)[group]
