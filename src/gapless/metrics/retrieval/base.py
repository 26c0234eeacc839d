"""Metrics of what was found for queries: a score of each query, and what becomes of them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from gapless.metrics.metric import Metric
from gapless.metrics.retrieval.queries import Documents, Ranking

ACTIONS = ("error", "skip", "neg", "pos")
AGGREGATIONS = ("mean", "median", "min", "max")
Aggregation = str | Callable[..., Tensor]


class RetrievalMetric(Metric, abstract=True):
    """A score of each query, averaged over queries.

    Args:
        empty_target_action: what a query without a relevant document counts as: ``"neg"`` 0, ``"pos"`` 1,
            ``"skip"`` nothing; ``"error"`` raises, for which ``compute`` **waits** for the device.
        ignore_index: a target that does not count.
        aggregation: what becomes of the scores of all queries: ``"mean"``, ``"median"``, ``"min"``,
            ``"max"``, or a function of them with an argument ``dim``, for which ``compute`` **waits**: how
            many there are is known to the device only.
        capacity: the number of documents there is room for, in fixed storage; None to let it grow.
    """

    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    is_differentiable = False
    higher_is_better = True
    beyond = "capacity"
    function: ClassVar[str]
    """The function of one query."""
    binary: ClassVar[bool] = True
    """Whether documents are relevant or not; else there are degrees."""
    lacking: ClassVar[str] = "positive"
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
        if empty_target_action not in ACTIONS:
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
        """Add documents: their scores, whether (or how much) they are relevant, and the numbers of their
        queries; all of the same shape. A query's documents may come in several batches.
        """
        if indexes is None:
            raise ValueError("Argument `indexes` cannot be None")
        self.observe(preds, target, indexes)

    def scores(self, ranking: Ranking) -> Tensor:
        """``[N]``: the score of each query."""
        raise NotImplementedError

    def lacks(self, ranking: Ranking) -> Tensor:
        """``[N]`` of bool: the queries that have no score of their own."""
        return ranking.sums(ranking.relevance) == 0

    def value(self) -> Tensor:
        ranking = self.found.derive("ranking", self.found.ranking)
        counted, lacks = ranking.queries, self.lacks(ranking)
        scores = self.scores(ranking).masked_fill(lacks, float(self.empty_target_action == "pos"))
        if self.empty_target_action == "error" and bool((counted & lacks).any()):
            raise ValueError(f"`compute` method was provided with a query with no {self.lacking} target.")
        if self.empty_target_action == "skip":
            counted = counted & ~lacks
        return aggregated(scores, counted, self.aggregation).to(self.dtype)


class CutOff(RetrievalMetric, abstract=True):
    """A score of the best documents of each query.

    Args:
        top_k: how many of the best documents count; None for all.
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

    def taken(self, ranking: Ranking) -> Tensor:
        """``[N]`` of bool: the best documents of each query."""
        return torch.ones_like(ranking.kept) if self.top_k is None else ranking.rank < self.top_k

    def gained(self, ranking: Ranking) -> Tensor:
        """``[N]``: the relevance of the best documents, of those alone that have a score above 0."""
        return ranking.relevance * (self.taken(ranking) & (ranking.score > 0))


def aggregated(scores: Tensor, counted: Tensor, aggregation: Aggregation) -> Tensor:
    """The scores of the queries that are `counted` as one; 0 where there are none."""
    if callable(aggregation):
        kept = scores[counted]
        return aggregation(kept, dim=None) if kept.numel() else scores.new_zeros(())
    number = counted.sum()
    if aggregation == "mean":
        return (scores * counted).sum() / number.clamp(min=1)
    if aggregation == "max":
        best = scores.masked_fill(~counted, -torch.inf).amax()
    elif aggregation == "min":
        best = scores.masked_fill(~counted, torch.inf).amin()
    else:
        ordered = scores.masked_fill(~counted, torch.inf).sort().values
        best = ordered.gather(0, ((number - 1).clamp(min=0) // 2).reshape(1))[0]
    return best.masked_fill(number == 0, 0.0)


def share(over: Tensor, under: Tensor) -> Tensor:
    """``over / under``, 0 where there is nothing."""
    return (over / under).masked_fill(under == 0, 0.0)
