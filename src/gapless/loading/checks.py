"""Find mistakes in what the ranks' loaders yield, by counting and comparing; nothing runs here."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.loading.checks_common import RanksSeen, ordering_line
from gapless.loading.checks_positions import check_positions
from gapless.loading.checks_streams import check_streams
from gapless.loading.rank_items import Epoch, RankItems
from gapless.model.loading_mistakes import Mistake, mistake


def find_mistakes(world: RanksSeen) -> Iterator[Mistake]:
    """Yield every mistake."""
    yield from check_streams(world) if world.first.iterable else check_positions(world)
    yield from _check_lengths(world)


def _check_lengths(world: RanksSeen) -> Iterator[Mistake]:
    """Yield a mistake if ranks have different numbers of batches."""
    if len(world.ranks) < 2 or not all(rank.complete for rank in world.ranks):
        return
    for number in range(min(len(rank.epochs) for rank in world.ranks)):
        counts = [_count_batches(rank, rank.epochs[number]) for rank in world.ranks]
        fewest, most = min(counts), max(counts)
        if fewest == most:
            continue
        observation = (
            f"rank {counts.index(fewest)} gets {_batches(fewest)} and rank {counts.index(most)} {most:,}: "
            "at the end the other ranks wait for a rank that has already left the loop"
        )
        remedy = (
            "`gapless.loading.shard(dataset)` gives every rank the same number"
            if world.first.iterable
            else "`DistributedSampler` and `gapless.loading.BucketBatchSampler` give every rank the same "
            "number"
        )
        yield mistake("GAP318", ordering_line(world), observation, remedy, fewest=fewest, most=most)
        return


def _batches(count: int) -> str:
    return "1 batch" if count == 1 else f"{count:,} batches"


def _count_batches(rank: RankItems, epoch: Epoch) -> int:
    """Count the batches that the loop gets; recorded streams include incomplete ones."""
    sizes = epoch.batches()
    if not rank.iterable or not rank.drop_last:
        return len(sizes)
    return sum(size == rank.batch_size for size in sizes)
