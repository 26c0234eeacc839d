"""Documents of queries, ranked in tensors whose size does not depend on the number of queries."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.rows import Rows


class Ranking(NamedTuple):
    """All documents, sorted by query and from the highest score, ``[N]`` each.

    `query` numbers the queries from 0; `rank` begins at 0 in each. Documents that do not count come last and
    are not `kept`.
    """

    query: Tensor
    rank: Tensor
    score: Tensor
    relevance: Tensor
    kept: Tensor

    def sum_per_query(self, values: Tensor) -> Tensor:
        """Return the sum of `values` over the documents of each query, ``[N]`` of float64 or int64."""
        wide = torch.float64 if values.is_floating_point() else torch.int64
        totals = torch.zeros(values.shape, dtype=wide, device=values.device)
        return totals.scatter_add_(0, self.query, (values * self.kept).to(wide))

    def count_from_top(self, hits: Tensor) -> Tensor:
        """Return how many of the bools `hits` are at each document or above it in its query, ``[N]``."""
        total = (hits & self.kept).cumsum(0)
        first = torch.where(self.rank == 0, total - (hits & self.kept).long(), 0)
        return total - first.cummax(0).values

    @property
    def queries(self) -> Tensor:
        """Which of the numbers 0 to N - 1 are queries, ``[N]`` of bool."""
        return self.sum_per_query(self.kept.long()) > 0


class Documents(Rows):
    """Scores and relevance of documents, and their queries.

    Without a capacity the storage grows. If relevance must be `binary`, other values are counted as bad, and
    their documents are left out.
    """

    def __init__(self, binary: bool, ignore_index: int | None, capacity: int | None) -> None:
        self.binary = binary
        self.ignore_index = ignore_index
        columns = {
            "query": ((), torch.int64),
            "score": ((), torch.float32),
            "relevance": ((), torch.float32),
            "kept": ((), torch.bool),
        }
        super().__init__((binary, ignore_index), columns, capacity)

    def count(self, batch: Batch) -> None:
        score, relevance, query = batch.args
        check_documents(score, relevance, query)
        score, relevance, query = (column.reshape(-1) for column in (score, relevance, query))
        kept = torch.ones_like(query, dtype=torch.bool)
        if self.ignore_index is not None:
            kept = relevance != self.ignore_index
        if self.binary and relevance.dtype != torch.bool:
            invalid = kept & ((relevance < 0) | (relevance > 1))
            self.state["strange"].add_(invalid.sum())
            kept = kept & ~invalid
        self.append(query=query, score=score.float(), relevance=relevance.float(), kept=kept)

    def complaint(self, count: int) -> str:
        if not self.binary:
            return super().complaint(count)
        return f"Detected {count} value{'s' * (count != 1)} in `target` outside 0 to 1{self.capacity_note()}"

    def complaint_about(self, batch: Batch, count: int) -> str:
        message = self.complaint(count)
        return f"`target` must contain `binary` values. {message}" if self.binary else message

    def ranking(self) -> Ranking:
        """Return all documents, sorted by query and score."""
        self.require_rows()
        names = ("query", "score", "relevance", "kept")
        query, score, relevance, kept = (self.read(name) for name in names)
        is_stored = self.valid_mask()
        if kept.dtype != torch.bool:  # fixed storage before the first batch
            kept = kept.bool()
        return rank_documents(query.long(), score, relevance, kept if is_stored is None else kept & is_stored)


def rank_documents(
    query: Tensor, score: Tensor, relevance: Tensor, kept: Tensor, key: Tensor | None = None
) -> Ranking:
    """Sort documents into a ranking by `score`, or by `key` if that is passed."""
    order = (score if key is None else key).argsort(descending=True, stable=True)
    order = order[query[order].argsort(stable=True)]
    order = order[(~kept)[order].to(torch.uint8).argsort(stable=True)]
    query, score, relevance, kept = (column[order] for column in (query, score, relevance, kept))
    index = torch.arange(len(query), device=query.device)
    is_first = torch.ones_like(kept)
    is_first[1:] = (query[1:] != query[:-1]) | (kept[1:] != kept[:-1])
    rank = index - torch.where(is_first, index, 0).cummax(0).values
    return Ranking(is_first.cumsum(0) - 1, rank, score, relevance, kept)


def check_documents(score: Tensor, relevance: Tensor, query: Tensor) -> None:
    """Raise ValueError for shapes or dtypes that documents cannot have."""
    if query.shape != score.shape or score.shape != relevance.shape:
        raise ValueError("`indexes`, `preds` and `target` must be of the same shape")
    if query.dtype is not torch.long:
        raise ValueError("`indexes` must be a tensor of long integers")
    if not query.numel() or not query.dim():
        raise ValueError("`indexes`, `preds` and `target` must be non-empty and non-scalar tensors")
    if not score.is_floating_point():
        raise ValueError("`preds` must be a tensor of floats")
    if relevance.is_complex():
        raise ValueError("`target` must be a tensor of booleans, integers or floats")
