"""Base classes of retrieval metrics: a score for each query, aggregated over queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from gapless.metrics.metric import Metric
from gapless.metrics.retrieval.queries import Documents, Ranking

EMPTY_TARGET_ACTIONS = ("error", "skip", "neg", "pos")
"""Accepted values of `empty_target_action`."""
AGGREGATIONS = ("mean", "median", "min", "max")
"""Accepted names for `aggregation`."""
Aggregation = str | Callable[..., Tensor]


class RetrievalMetric(Metric, abstract=True):
    """A score for each query, averaged over queries.

    Args:
        empty_target_action: the score of a query without relevant documents: ``"neg"`` for 0, ``"pos"`` for
            1, ``"skip"`` to leave it out; ``"error"`` raises, for which ``compute`` **waits** for the device.
        ignore_index: a target that does not count.
        aggregation: how the scores of all queries are combined: ``"mean"``, ``"median"``, ``"min"``,
            ``"max"``, or a function of the scores with an argument ``dim``. For a function ``compute``
            **waits**, because only the device knows the number of queries.
        capacity: the maximum number of documents, kept in fixed storage; None to let it grow.
    """

    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    is_differentiable = False
    higher_is_better = True
    more_arguments = ("capacity",)
    function: ClassVar[str]
    """The name of the function for a single query."""
    binary: ClassVar[bool] = True
    """Whether relevance is 0 or 1; else it may be any degree."""
    lacking: ClassVar[str] = "positive"
    """The kind of target that a query without a score lacks, for messages."""
    found: Documents

    def __init__(
        self,
        empty_target_action: str = "neg",
        ignore_index: int | None = None,
        aggregation: Aggregation = "mean",
        **kwargs: Any,
    ) -> None:
        capacity = kwargs.pop("capacity", None)
        super().__init__(**kwargs)
        if empty_target_action not in EMPTY_TARGET_ACTIONS:
            raise ValueError(
                f"Argument `empty_target_action` received a wrong value `{empty_target_action}`."
            )
        if ignore_index is not None and not isinstance(ignore_index, int):
            raise ValueError("Argument `ignore_index` must be an integer or None.")
        if not (callable(aggregation) or aggregation in AGGREGATIONS):
            raise ValueError(
                "Argument `aggregation` must be one of `mean`, `median`, `min`, `max` or a custom callable "
                f"function which takes tensor of values, but got {aggregation}."
            )
        self.empty_target_action = empty_target_action
        self.ignore_index = ignore_index
        self.aggregation = aggregation
        self.use("found", Documents(self.binary, ignore_index, capacity))

    def update(self, preds: Tensor, target: Tensor, indexes: Tensor) -> None:
        """Add documents: their scores, their relevance, and the numbers of their queries, all of one shape.

        A query's documents may come in several batches.
        """
        if indexes is None:
            raise ValueError("Argument `indexes` cannot be None")
        self.observe(preds, target, indexes)

    def scores(self, ranking: Ranking) -> Tensor:
        """Return the score of each query, ``[N]``."""
        raise NotImplementedError

    def lacks(self, ranking: Ranking) -> Tensor:
        """Mark the queries without relevant documents, which have no score, ``[N]`` of bool."""
        return ranking.sum_per_query(ranking.relevance) == 0

    def value(self) -> Tensor:
        ranking = self.found.derive("ranking", self.found.ranking)
        is_counted, lacks = ranking.queries, self.lacks(ranking)
        scores = self.scores(ranking).masked_fill(lacks, float(self.empty_target_action == "pos"))
        if self.empty_target_action == "error" and bool((is_counted & lacks).any()):
            raise ValueError(f"`compute` method was provided with a query with no {self.lacking} target.")
        if self.empty_target_action == "skip":
            is_counted = is_counted & ~lacks
        return aggregate(scores, is_counted, self.aggregation).to(self.dtype)


class TopKMetric(RetrievalMetric, abstract=True):
    """A score of the `top_k` best documents of each query.

    Args:
        top_k: the number of best documents that count; None for all.
    """

    def __init__(
        self,
        empty_target_action: str = "neg",
        ignore_index: int | None = None,
        top_k: int | None = None,
        aggregation: Aggregation = "mean",
        **kwargs: Any,
    ) -> None:
        super().__init__(empty_target_action, ignore_index, aggregation, **kwargs)
        if top_k is not None and not (isinstance(top_k, int) and top_k > 0):
            raise ValueError(f"`top_k` has to be a positive integer or None, but got {top_k}")
        self.top_k = top_k

    def is_in_top_k(self, ranking: Ranking) -> Tensor:
        """Mark the `top_k` best documents of each query, ``[N]`` of bool."""
        return torch.ones_like(ranking.kept) if self.top_k is None else ranking.rank < self.top_k

    def gains(self, ranking: Ranking) -> Tensor:
        """Return the relevance of documents, ``[N]``, 0 unless in the top k with a score above 0."""
        return ranking.relevance * (self.is_in_top_k(ranking) & (ranking.score > 0))


def aggregate(scores: Tensor, is_counted: Tensor, aggregation: Aggregation) -> Tensor:
    """Combine the scores of the queries that are `is_counted`; 0 if there are none."""
    if callable(aggregation):
        kept = scores[is_counted]
        return aggregation(kept, dim=None) if kept.numel() else scores.new_zeros(())
    count = is_counted.sum()
    if aggregation == "mean":
        return (scores * is_counted).sum() / count.clamp(min=1)
    if aggregation == "max":
        best = scores.masked_fill(~is_counted, -torch.inf).amax()
    elif aggregation == "min":
        best = scores.masked_fill(~is_counted, torch.inf).amin()
    else:
        ordered = scores.masked_fill(~is_counted, torch.inf).sort().values
        best = ordered.gather(0, ((count - 1).clamp(min=0) // 2).reshape(1))[0]
    return best.masked_fill(count == 0, 0.0)


def divide_or_zero(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return ``numerator / denominator``, and 0 where the denominator is 0."""
    return (numerator / denominator).masked_fill(denominator == 0, 0.0)
