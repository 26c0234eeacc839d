"""Scores of how many relevant documents were found."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics.retrieval.base import Aggregation, CutOff, RetrievalMetric, share
from gapless.metrics.retrieval.queries import Ranking


class RetrievalPrecision(CutOff):
    """The share of relevant documents among the `top_k` best; those with a score of 0 or less are not found.

    Args:
        adaptive_k: whether a query with fewer documents is measured by these.
    """

    torchmetrics_file = "precision"

    def __init__(
        self,
        empty_target_action: str = "neg",
        ignore_index: int | None = None,
        top_k: int | None = None,
        adaptive_k: bool = False,
        aggregation: Aggregation = "mean",
        **kwargs: Any,
    ) -> None:
        super().__init__(empty_target_action, ignore_index, top_k, aggregation, **kwargs)
        if not isinstance(adaptive_k, bool):
            raise ValueError("`adaptive_k` has to be a boolean")
        self.adaptive_k = adaptive_k

    def scores(self, ranking: Ranking) -> Tensor:
        number = ranking.sums(ranking.kept.long())
        if self.top_k is not None:
            number = number.clamp(max=self.top_k) if self.adaptive_k else torch.full_like(number, self.top_k)
        return share(ranking.sums(self.gained(ranking)), number)


class RetrievalRecall(CutOff):
    """The share of the relevant documents that is among the `top_k` best, with a score above 0."""

    torchmetrics_file = "recall"

    def scores(self, ranking: Ranking) -> Tensor:
        return share(ranking.sums(self.gained(ranking)), ranking.sums(ranking.relevance))


class RetrievalHitRate(CutOff):
    """The share of queries with a relevant document among the `top_k` best."""

    torchmetrics_file = "hit_rate"

    def scores(self, ranking: Ranking) -> Tensor:
        return (ranking.sums(ranking.relevance * self.taken(ranking)) > 0).double()


class RetrievalFallOut(CutOff):
    """The share of the irrelevant documents that is among the `top_k` best.

    Args:
        empty_target_action: what a query without an irrelevant document counts as: ``"neg"`` 0, ``"pos"`` 1,
            ``"skip"`` nothing; ``"error"`` raises, for which ``compute`` **waits** for the device.
    """

    torchmetrics_file = "fall_out"
    higher_is_better = False
    lacking = "negative"

    def __init__(
        self,
        empty_target_action: str = "pos",
        ignore_index: int | None = None,
        top_k: int | None = None,
        aggregation: Aggregation = "mean",
        **kwargs: Any,
    ) -> None:
        super().__init__(empty_target_action, ignore_index, top_k, aggregation, **kwargs)

    def lacks(self, ranking: Ranking) -> Tensor:
        return ranking.sums(1 - ranking.relevance) == 0

    def scores(self, ranking: Ranking) -> Tensor:
        irrelevant = 1 - ranking.relevance
        return share(ranking.sums(irrelevant * self.taken(ranking)), ranking.sums(irrelevant))


class RetrievalRPrecision(RetrievalMetric):
    """The share of relevant documents among as many of the best as there are relevant ones."""

    torchmetrics_file = "r_precision"
    function = "retrieval_r_precision"

    def scores(self, ranking: Ranking) -> Tensor:
        relevant = ranking.sums(ranking.relevance)
        best = ranking.rank < relevant[ranking.query]
        return share(ranking.sums(ranking.relevance * best), relevant)
