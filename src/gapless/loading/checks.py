"""From what the ranks' loaders yield to mistakes: counts and comparisons, nothing runs here."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.loading.checks_common import World, ordering_line
from gapless.loading.checks_positions import of_positions
from gapless.loading.checks_streams import of_streams
from gapless.loading.rank_items import Epoch, RankItems
from gapless.model.loading_mistakes import Mistake, mistake


def mistakes(world: World) -> Iterator[Mistake]:
    """Every mistake."""
    yield from of_streams(world) if world.first.iterable else of_positions(world)
    yield from _lengths(world)


def _lengths(world: World) -> Iterator[Mistake]:
    """Ranks with different numbers of batches."""
    if len(world.ranks) < 2 or not all(rank.complete for rank in world.ranks):
        return
    for number in range(min(len(rank.epochs) for rank in world.ranks)):
        counts = [_given(rank, rank.epochs[number]) for rank in world.ranks]
        fewest, most = min(counts), max(counts)
        if fewest == most:
            continue
        seen = (
            f"rank {counts.index(fewest)} gets {_batches(fewest)} and rank {counts.index(most)} {most:,}: "
            "at the end the other ranks wait for a rank that has already left the loop"
        )
        remedy = (
            "`gapless.loading.shard(dataset)` gives every rank the same number"
            if world.first.iterable
            else "`DistributedSampler` and `gapless.loading.BucketBatchSampler` give every rank the same "
            "number"
        )
        yield mistake("GAP318", ordering_line(world), seen, remedy, fewest=fewest, most=most)
        return


def _batches(count: int) -> str:
    return "1 batch" if count == 1 else f"{count:,} batches"


def _given(rank: RankItems, epoch: Epoch) -> int:
    """Batches that the loop gets; of streams, incomplete ones were looked at too."""
    sizes = epoch.batches()
    if not rank.iterable or not rank.drop_last:
        return len(sizes)
    return sum(size == rank.batch_size for size in sizes)
