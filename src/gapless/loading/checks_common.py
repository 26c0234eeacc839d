"""All ranks side by side, and mistakes that streams and map-style datasets share."""

from __future__ import annotations

from typing import NamedTuple

import numpy

from gapless.loading.rank_items import RankItems
from gapless.model.loading_mistakes import Mistake, mistake
from gapless.model.source import SourceLine

MIN_ITEMS_TO_COMPARE = 8
"""Fewer items can be equal by chance."""
Array = numpy.ndarray


class RanksSeen(NamedTuple):
    """What was recorded of all ranks, and of one process alone with all the data (None: not possible)."""

    ranks: tuple[RankItems, ...]
    alone: RankItems | None

    @property
    def first(self) -> RankItems:
        """The first rank."""
        return self.ranks[0]

    @property
    def complete(self) -> bool:
        """Whether everything was recorded to its end."""
        return all(rank.complete for rank in self.ranks) and (self.alone is None or self.alone.complete)

    @property
    def makers(self) -> str:
        """Who yields, in words: ``4 workers of each of 2 ranks``."""
        parts = []
        if self.first.workers:
            parts.append(count_noun(self.first.workers, "worker"))
        if len(self.ranks) > 1:
            parts.append(count_noun(len(self.ranks), "rank"))
        return " of each of ".join(parts) if len(parts) == 2 else (parts or ["one process"])[0]


def count_noun(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def repeated_by_ranks(world: RanksSeen, items: int, extra: int, in_one_rank: bool) -> Mistake:
    """Return the mistake that ranks yield `extra` more than the `items` items of the data; `in_one_rank`
    says whether the workers of a single rank repeat items, too (GAP311)."""
    ranks = len(world.ranks)
    epoch = f"an epoch of {count_noun(ranks, 'rank')}"
    total = f"{epoch} has {items + extra:,} items, but the data has only {items:,}"
    workers = world.first.workers
    if workers > 1 and not in_one_rank and world.first.iterable:
        total += f"; the {workers} workers of a rank split them, but the ranks do not"
    if world.first.iterable:
        remedy = (
            "also split by rank: `gapless.loading.shard(dataset)`, or in `__iter__` take every `world_size "
            "* num_workers`-th item, starting at `rank * num_workers + worker`"
        )
    elif world.first.sampler == "DistributedSampler":
        remedy = "give each rank's sampler its own `rank`, and the same `num_replicas` everywhere"
    else:
        remedy = (
            "`DataLoader(dataset, sampler=DistributedSampler(dataset), ...)`, and call "
            "`sampler.set_epoch(epoch)` in the loop"
        )
    return mistake("GAP312", ordering_line(world), total, remedy, items=items, repeated=extra, ranks=ranks)


def ordering_line(world: RanksSeen) -> SourceLine | None:
    return world.first.line if world.first.iterable else world.first.sampler_line or world.first.line


def lost_items(world: RanksSeen, observation: str, missing: int, items: int, remedy: str) -> Mistake:
    return mistake("GAP313", ordering_line(world), observation, remedy, items=items, lost=missing)


KEEP_ITEMS_REMEDY = "use a smaller `batch_size`, or `drop_last=False`"
SINGLE_ITEM_REMEDY = (
    "`drop_last=True`, or another `batch_size`: BatchNorm refuses to train on a single item, and that "
    "item's gradient weighs as much as a whole batch"
)
WORKER_TAILS_REMEDY = (
    "every worker drops its own last batch: use fewer workers or a smaller `batch_size`, or build the "
    "batches in the dataset with `batch_size=None`"
)


def last_batch(rank: RankItems, observation: str, count: int, remedy: str) -> Mistake:
    return mistake("GAP317", rank.line, observation, remedy, items=count)
