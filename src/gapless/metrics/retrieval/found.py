"""Retrieval metrics that count relevant documents among the best."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.metrics.retrieval.base import Aggregation, RetrievalMetric, TopKMetric, divide_or_zero
from gapless.metrics.retrieval.queries import Ranking


class RetrievalPrecision(TopKMetric):
    """The share of relevant documents among the `top_k` best; a score of 0 or less counts as not retrieved.

    Args:
        adaptive_k: whether `top_k` is limited to the number of documents of each query.
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
        number = ranking.sum_per_query(ranking.kept.long())
        if self.top_k is not None:
            number = number.clamp(max=self.top_k) if self.adaptive_k else torch.full_like(number, self.top_k)
        return divide_or_zero(ranking.sum_per_query(self.gains(ranking)), number)


class RetrievalRecall(TopKMetric):
    """The share of the relevant documents that is among the `top_k` best, with a score above 0."""

    torchmetrics_file = "recall"

    def scores(self, ranking: Ranking) -> Tensor:
        return divide_or_zero(
            ranking.sum_per_query(self.gains(ranking)), ranking.sum_per_query(ranking.relevance)
        )


class RetrievalHitRate(TopKMetric):
    """The share of queries with a relevant document among the `top_k` best."""

    torchmetrics_file = "hit_rate"

    def scores(self, ranking: Ranking) -> Tensor:
        return (ranking.sum_per_query(ranking.relevance * self.is_in_top_k(ranking)) > 0).double()


class RetrievalFallOut(TopKMetric):
    """The share of the irrelevant documents that is among the `top_k` best.

    Args:
        empty_target_action: the score of a query without irrelevant documents: ``"neg"`` for 0, ``"pos"`` for
            1, ``"skip"`` to leave it out; ``"error"`` raises, for which ``compute`` **waits** for the device.
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
        """Mark the queries without irrelevant documents, which have no score, ``[N]`` of bool."""
        return ranking.sum_per_query(1 - ranking.relevance) == 0

    def scores(self, ranking: Ranking) -> Tensor:
        irrelevant = 1 - ranking.relevance
        return divide_or_zero(
            ranking.sum_per_query(irrelevant * self.is_in_top_k(ranking)), ranking.sum_per_query(irrelevant)
        )


class RetrievalRPrecision(RetrievalMetric):
    """The share of relevant documents among the R best, for R relevant documents."""

    torchmetrics_file = "r_precision"
    function = "retrieval_r_precision"

    def scores(self, ranking: Ranking) -> Tensor:
        relevant = ranking.sum_per_query(ranking.relevance)
        best = ranking.rank < relevant[ranking.query]
        return divide_or_zero(ranking.sum_per_query(ranking.relevance * best), relevant)
