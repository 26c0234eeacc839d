"""Documents found for queries, ranked in tensors whose size does not depend on how many queries there are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gapless.metrics.batch import Batch
from gapless.metrics.rows import Rows


class Ranking(NamedTuple):
    """All documents, query after query, the best score of each first; ``[N]`` each.

    `query` numbers the queries from 0; `rank` begins at 0 in each; documents that do not count come last, and
    are not `kept`.
    """

    query: Tensor
    rank: Tensor
    score: Tensor
    relevance: Tensor
    kept: Tensor

    def sums(self, values: Tensor) -> Tensor:
        """``[N]`` of float64 or int64: the sum over the documents of each query; 0 where there is none."""
        wide = torch.float64 if values.is_floating_point() else torch.int64
        found = torch.zeros(values.shape, dtype=wide, device=values.device)
        return found.scatter_add_(0, self.query, (values * self.kept).to(wide))

    def above(self, hits: Tensor) -> Tensor:
        """``[N]`` of int64: how many of `hits`, which are booleans, stand at a document or above it."""
        total = (hits & self.kept).cumsum(0)
        first = torch.where(self.rank == 0, total - (hits & self.kept).long(), 0)
        return total - first.cummax(0).values

    @property
    def queries(self) -> Tensor:
        """``[N]`` of bool: which numbers are those of queries."""
        return self.sums(self.kept.long()) > 0


class Documents(Rows):
    """Scores and relevance of documents, with the queries that they were found for.

    Without a capacity the storage grows. A relevance that should be 0 or 1 and is neither is counted, and its
    document left out.
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
        score, relevance, query = (one.reshape(-1) for one in (score, relevance, query))
        kept = torch.ones_like(query, dtype=torch.bool)
        if self.ignore_index is not None:
            kept = relevance != self.ignore_index
        if self.binary and relevance.dtype != torch.bool:
            strange = kept & ((relevance < 0) | (relevance > 1))
            self.state["strange"].add_(strange.sum())
            kept = kept & ~strange
        self.append(query=query, score=score.float(), relevance=relevance.float(), kept=kept)

    def complaint(self, count: int) -> str:
        if not self.binary:
            return super().complaint(count)
        return f"Detected {count} value{'s' * (count != 1)} in `target` outside 0 to 1{self.full()}"

    def complaint_about(self, batch: Batch, count: int) -> str:
        told = self.complaint(count)
        return f"`target` must contain `binary` values. {told}" if self.binary else told

    def ranking(self) -> Ranking:
        """The documents by query and score."""
        self.rows_needed()
        names = ("query", "score", "relevance", "kept")
        query, score, relevance, kept = (self.read(name) for name in names)
        there = self.there()
        if kept.dtype != torch.bool:  # fixed storage that has met nothing yet
            kept = kept.bool()
        return ranked(query.long(), score, relevance, kept if there is None else kept & there)


def ranked(
    query: Tensor, score: Tensor, relevance: Tensor, kept: Tensor, by: Tensor | None = None
) -> Ranking:
    """Documents in any order as a ranking by `score`, or by something else."""
    order = (score if by is None else by).argsort(descending=True, stable=True)
    order = order[query[order].argsort(stable=True)]
    order = order[(~kept)[order].to(torch.uint8).argsort(stable=True)]
    query, score, relevance, kept = (one[order] for one in (query, score, relevance, kept))
    place = torch.arange(len(query), device=query.device)
    new = torch.ones_like(kept)
    new[1:] = (query[1:] != query[:-1]) | (kept[1:] != kept[:-1])
    rank = place - torch.where(new, place, 0).cummax(0).values
    return Ranking(new.cumsum(0) - 1, rank, score, relevance, kept)


def check_documents(score: Tensor, relevance: Tensor, query: Tensor) -> None:
    """Raises ValueError for shapes and dtypes that are not those of documents."""
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
