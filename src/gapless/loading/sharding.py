"""`shard`: divide an iterable among ranks and DataLoader workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, cycle, islice
from typing import Any, Literal, TypeVar

import torch
from torch.utils.data import IterableDataset

from gapless.errors import UsageError
from gapless.loading.ranks import current_rank, current_worker, in_process_group

Item = TypeVar("Item")
Even = Literal["repeat", "drop", "none"]
_MAX_WORKERS = 1024
"""Workers of a rank whose positions are kept: far more than one machine runs."""


def shard(
    source: Iterable[Item] | Callable[[], Iterable[Item]],
    *,
    even: Even = "repeat",
    rank: int | None = None,
    ranks: int | None = None,
) -> Shard:
    """Make `source` a dataset of which every rank and DataLoader worker yields its own part.

    Item i goes to rank ``i % ranks``, and there to the workers in turn; the items of a rank do not depend on
    its number of workers. `source` is anything that can be iterated repeatedly in the same order: a list, a
    Dataset with a length, an iterable object, or a function that returns an iterator (a generator function).
    It may be infinite. If it has a length and can be indexed, only a shard's own items are loaded; otherwise
    every shard iterates over everything and keeps its part.

    If the number of items does not divide, `even` says how ranks get the same count: ``"repeat"`` adds items
    from the beginning, ``"drop"`` leaves the last ones out, ``"none"`` lets the counts differ by one.

    `rank` and `ranks` default to the process group, or ``RANK`` and ``WORLD_SIZE``.

    Raises:
        UsageError: `source` is an iterator, which can be iterated only once.
    """
    return Shard(source, even=even, rank=rank, ranks=ranks)


class Shard(IterableDataset):
    """The dataset returned by `shard`. Its length is that of one rank, if the source has one."""

    def __init__(
        self,
        source: Iterable[Any] | Callable[[], Iterable[Any]],
        *,
        even: Even = "repeat",
        rank: int | None = None,
        ranks: int | None = None,
    ) -> None:
        if even not in ("repeat", "drop", "none"):
            raise UsageError(f"even={even!r} must be 'repeat', 'drop' or 'none'")
        if isinstance(source, Iterator):
            raise UsageError(
                f"shard() got a {type(source).__name__}, which can be iterated only once: pass the "
                "function that creates it, without calling it"
            )
        if not (callable(source) or hasattr(source, "__iter__") or _is_indexable(source)):
            raise UsageError(f"shard() needs an iterable or a function, not a {type(source).__name__}")
        if ranks is not None or rank is not None:
            current_rank(rank, ranks)
        self.source: Any = source
        self.even = even
        self._rank, self._ranks = rank, ranks
        self._yielded = 0
        # In shared memory, so that a position used by a worker is used for all: the next epoch's
        # workers are copies of the same object.
        self._resume: torch.Tensor | None = None
        self._resume_workers = 0

    def __len__(self) -> int:
        total, (_, ranks) = self._total(), current_rank(self._rank, self._ranks)
        if self.even == "none":
            return len(range(current_rank(self._rank, self._ranks)[0], total, ranks))
        return total // ranks if self.even == "drop" else -(-total // ranks)

    def __iter__(self) -> Iterator[Any]:
        rank, ranks = current_rank(self._rank, self._ranks)
        worker, workers = current_worker()
        begin = self._take_position(worker, workers)
        self._yielded = begin
        rows = self._rows_by_position if _is_indexable(self.source) else self._rows
        for item in rows(rank, ranks, range_from(worker, workers, begin)):
            self._yielded += 1
            yield item
        self._yielded = 0  # the state after the end is that before the next pass

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if in_process_group():  # a spawned worker is in no process group
            state["_rank"], state["_ranks"] = current_rank(self._rank, self._ranks)
        return state

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this process: in a DataLoader's worker only its own, as StatefulDataLoader
        needs.

        In the loop's process, with workers, use `state_after`.
        """
        worker, workers = current_worker()
        rank, ranks = current_rank(self._rank, self._ranks)
        pending = self._resume
        yielded = self._yielded
        if pending is not None and self._resume_workers == workers and int(pending[worker]) >= 0:
            yielded = int(pending[worker])
        return {"workers": workers, "rank": rank, "ranks": ranks, "yielded": {worker: yielded}}

    def state_after(self, batches: int, *, batch_size: int, num_workers: int) -> dict[str, Any]:
        """Return the state after a DataLoader without `drop_last` has yielded `batches` batches on this rank.

        For a plain DataLoader, whose workers run ahead of the loop. Exact until the shortest worker has
        yielded its last batch.
        """
        rank, ranks = current_rank(self._rank, self._ranks)
        workers = max(1, num_workers)
        yielded = {w: len(range(w, batches, workers)) * batch_size for w in range(workers)}
        return {"workers": workers, "rank": rank, "ranks": ranks, "yielded": yielded}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state` in the next pass; later passes begin at the start.

        Raises:
            UsageError: `state` is from another number of ranks, or another rank.
        """
        rank, ranks = current_rank(self._rank, self._ranks)
        if (state["rank"], state["ranks"]) != (rank, ranks):
            raise UsageError(
                f"the state is of rank {state['rank']} of {state['ranks']}, but this is rank {rank} of "
                f"{ranks}"
            )
        positions = torch.full((_MAX_WORKERS,), -1, dtype=torch.int64)
        for worker, count in state["yielded"].items():
            positions[int(worker)] = count
        self._resume = positions.share_memory_()
        self._resume_workers = int(state["workers"])

    def _take_position(self, worker: int, workers: int) -> int:
        if self._resume is None:
            return 0
        begin = int(self._resume[worker])
        if begin >= 0 and workers != self._resume_workers:
            raise UsageError(
                f"the state is of {self._resume_workers} workers, but there are now {workers}: resume with "
                "the same number"
            )
        self._resume[worker] = -1
        return max(begin, 0)

    def _total(self) -> int:
        if not hasattr(self.source, "__len__"):
            raise TypeError(f"{type(self.source).__name__} has no length")
        return len(self.source)

    def _rows_by_position(self, rank: int, ranks: int, wanted: range_from) -> Iterator[Any]:
        total = self._total()
        whole, rest = divmod(total, ranks)
        for row in wanted:
            at = row * ranks + rank
            if row >= whole and not (row == whole and rest):
                return
            if row == whole and rank >= rest:
                if self.even != "repeat":
                    return
                at %= total
            elif row == whole and self.even == "drop":
                return
            yield self.source[at]

    def _rows(self, rank: int, ranks: int, wanted: range_from) -> Iterator[Any]:
        """Yield the items of this rank in the `wanted` rows; row k has the items k·ranks to (k+1)·ranks."""
        makes = callable(self.source) and not hasattr(type(self.source), "__iter__")
        items = iter(self.source() if makes else self.source)
        first: list[Any] = []
        row = 0
        while True:
            row_items = list(islice(items, ranks))
            if not row_items:
                return
            if not first and self.even == "repeat":
                first = row_items
            if len(row_items) < ranks and self.even == "drop":
                return
            if len(row_items) < ranks and self.even == "repeat":
                row_items = list(islice(chain(row_items, cycle(first)), ranks))
            if row in wanted and rank < len(row_items):
                yield row_items[rank]
            row += 1


class range_from:  # noqa: N801 - a range without end
    """The rows of one worker: ``worker + k * workers`` for k from `begin` on."""

    def __init__(self, worker: int, workers: int, begin: int) -> None:
        self.first, self.step = worker + begin * workers, workers

    def __contains__(self, row: int) -> bool:
        return row >= self.first and (row - self.first) % self.step == 0

    def __iter__(self) -> Iterator[int]:
        row = self.first
        while True:
            yield row
            row += self.step


def _is_indexable(source: Any) -> bool:
    """Whether `source` can be indexed (a Dataset of items, a list)."""
    if isinstance(source, (Mapping, IterableDataset)) or not hasattr(source, "__len__"):
        return False
    return isinstance(source, (Sequence, torch.utils.data.Dataset)) and hasattr(source, "__getitem__")
