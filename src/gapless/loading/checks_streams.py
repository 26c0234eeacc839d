"""Find mistakes of streams by counts and contents of their items."""

from __future__ import annotations

from collections.abc import Iterator

import numpy

from gapless.loading.checks_common import (
    KEEP_ITEMS_REMEDY,
    MIN_ITEMS_TO_COMPARE,
    SINGLE_ITEM_REMEDY,
    WORKER_TAILS_REMEDY,
    Array,
    RanksSeen,
    count_noun,
    last_batch,
    lost_items,
    repeated_by_ranks,
)
from gapless.loading.rank_items import RankItems
from gapless.model.loading_mistakes import Mistake, mistake

_MIN_SHARE_DROPPED = 0.01
"""Dropping a smaller share of the items is what `drop_last` is for."""


def check_streams(world: RanksSeen) -> Iterator[Mistake]:
    """Yield every mistake of a stream."""
    for check in (_repeated_stream, _lost_stream, _same_stream, _last_of_stream):
        yield from check(world)


def _counts(parts: list[Array]) -> tuple[Array, Array]:
    return numpy.unique(
        numpy.concatenate(parts) if parts else numpy.empty(0, numpy.int64), return_counts=True
    )


def _count_extra(items: list[Array], reference: list[Array]) -> int:
    """Count items of `items` beyond those of `reference`, both with multiplicities."""
    values, counts = _counts(items)
    reference_counts = dict(zip(*(part.tolist() for part in _counts(reference)), strict=True))
    return sum(
        max(0, count - reference_counts.get(value, 0))
        for value, count in zip(values.tolist(), counts.tolist(), strict=True)
    )


def _has_stable_content(alone: RankItems | None) -> bool:
    """Whether items have the same content in each pass, so that they can be identified by it."""
    if alone is None or not alone.fingerprints or len(alone.epochs) < 2:
        return False
    first, second = (epoch.values() for epoch in alone.epochs[:2])
    size = min(len(first), len(second))
    if not alone.complete:
        return bool(size) and bool(numpy.array_equal(first[:size], second[:size]))
    return _count_extra([first], [second]) == 0 == _count_extra([second], [first])


def has_unknown_items(world: RanksSeen) -> bool:
    """Whether workers yield items that one process alone does not: batches or packed sequences, which depend
    on the worker. Items cannot be compared one by one then.
    """
    if not _has_stable_content(world.alone) or world.alone is None:
        return False
    items_alone = world.alone.epochs[0].values()
    return any(not numpy.isin(rank.epochs[0].values(), items_alone).all() for rank in world.ranks)


def _repeated_stream(world: RanksSeen) -> Iterator[Mistake]:
    if not world.complete or has_unknown_items(world):
        yield from _same_beginnings(world)
        return
    if world.alone is None:
        return
    whole = world.alone.epochs[0].values()
    each = [rank.epochs[0].values() for rank in world.ranks]
    if not len(whole):
        return
    if _has_stable_content(world.alone):
        inside = max(_count_extra([part], [whole]) for part in each)
        among = _count_extra(each, [whole] * 1) - sum(_count_extra([part], [whole]) for part in each)
    elif len(world.alone.epochs[1].values()) != len(whole) or len(whole) < MIN_ITEMS_TO_COMPARE:
        return
    else:  # by number: a multiple of the whole from every worker or rank
        inside = max(len(part) - len(whole) for part in each)
        among = sum(min(len(part), len(whole)) for part in each) - len(whole)
        inside = inside if inside % len(whole) == 0 else 0
        among = among if among % len(whole) == 0 else 0
    if inside >= max(1, len(world.ranks)):  # fewer than one per rank may be added to even out
        yield _by_workers(world, len(whole), inside)
    if among >= len(world.ranks) and among > 0 and len(world.ranks) > 1:
        yield repeated_by_ranks(world, len(whole), among, bool(inside))


_DIVIDE_REMEDY = (
    "split them: `DataLoader(gapless.loading.shard(dataset), ...)`, or in `__iter__` keep only items whose "
    "index modulo `get_worker_info().num_workers` is `get_worker_info().id`"
)


def _by_workers(world: RanksSeen, items: int, extra: int) -> Mistake:
    workers = world.first.workers
    if extra == items * (workers - 1):
        each = f"each of {count_noun(workers, 'worker')} yields all {items:,} items"
        observation = f"{each}, so an epoch has {items + extra:,}"
    else:
        observation = (
            f"the {count_noun(workers, 'worker')} of a rank yield {items + extra:,} items, but the data has "
            f"only {items:,}"
        )
    return mistake(
        "GAP311", world.first.line, observation, _DIVIDE_REMEDY, items=items, repeated=extra, workers=workers
    )


def _same_beginnings(world: RanksSeen) -> Iterator[Mistake]:
    """Yield mistakes if streams, whose end was not reached, begin with the same items."""
    for rank in world.ranks:
        parts = list(rank.epochs[0].by_worker().values()) if rank.epochs else []
        common = _common_beginning(parts)
        if len(parts) > 1 and common:
            yield mistake(
                "GAP311",
                rank.line,
                f"all {count_noun(len(parts), 'worker')} yield the same first {common:,} items",
                _DIVIDE_REMEDY,
                same=common,
                workers=len(parts),
            )
            break
    common = _common_beginning([rank.epochs[0].values() for rank in world.ranks if rank.epochs])
    if len(world.ranks) > 1 and common:
        yield mistake(
            "GAP312",
            world.first.line,
            f"all {count_noun(len(world.ranks), 'rank')} yield the same first {common:,} items",
            "also split by rank: `gapless.loading.shard(dataset)`",
            same=common,
            ranks=len(world.ranks),
        )


def _common_beginning(parts: list[Array]) -> int:
    """Return how many items all `parts` begin with; 0 if that may be chance."""
    size = min((len(part) for part in parts), default=0)
    if len(parts) < 2 or not size:
        return 0
    first = parts[0][:size]
    alike = numpy.all([part[:size] == first for part in parts[1:]], axis=0)
    length = size if alike.all() else int(numpy.argmin(alike))
    chance = (
        length < max(MIN_ITEMS_TO_COMPARE, size / 2)
        or len(numpy.unique(first[:length])) < MIN_ITEMS_TO_COMPARE // 2
    )
    return 0 if chance else length


def _lost_stream(world: RanksSeen) -> Iterator[Mistake]:
    if world.alone is None or not world.complete or not world.alone.epochs:
        return
    whole = world.alone.epochs[0].values()
    each = [rank.epochs[0].values() for rank in world.ranks]
    again = [len(rank.epochs[1].values()) for rank in world.ranks if len(rank.epochs) > 1]
    if len(whole) and again and not sum(again) and sum(map(len, each)):
        yield lost_items(
            world, "the second epoch yields nothing", sum(map(len, each)), len(whole), _RESTART_REMEDY
        )
        return
    if not _has_stable_content(world.alone) or has_unknown_items(world):
        return
    missing = _count_extra([whole], each)
    even = len(world.ranks) - 1  # left out so that the ranks get equally many
    if missing > even:
        observation = f"{missing:,} of {len(whole):,} items never come from {world.makers}"
        yield lost_items(world, observation, missing, len(whole), _REMAINDER_REMEDY)


_RESTART_REMEDY = (
    "let `__iter__` start over each time: open files and create iterators in it, not in `__init__`; "
    "`gapless.loading.shard` takes the function that creates an iterator"
)
_REMAINDER_REMEDY = (
    "also give the remainder to some worker when the items do not divide evenly: take every n-th item "
    "instead of n equal blocks, or use `gapless.loading.shard(dataset)`, which loses none"
)


def _same_stream(world: RanksSeen) -> Iterator[Mistake]:
    """Yield a mistake if random numbers are drawn but two epochs have the same order."""
    first_rank = world.first
    if len(first_rank.epochs) < 2:
        return
    used = sorted({draw.name for draw in first_rank.draws if draw.used})
    first, second = (epoch.values() for epoch in first_rank.epochs[:2])
    size = min(len(first), len(second))
    alike = size >= MIN_ITEMS_TO_COMPARE and numpy.array_equal(first[:size], second[:size])
    if not used or not alike or len(numpy.unique(first[:size])) < MIN_ITEMS_TO_COMPARE // 2:
        return
    kept = (
        " (workers are kept and do not see what the loop changes in the dataset)"
        if first_rank.persistent
        else ""
    )
    yield mistake(
        "GAP315",
        first_rank.line,
        (
            f"the first two epochs yield the same {size:,} items in the same order, although random "
            f"numbers are drawn from `{used[0]}`{kept}"
        ),
        "include the epoch in the seed: `numpy.random.default_rng([seed, epoch])`, the same in every worker",
        items=size,
    )


_SINGLE_ITEM = "the last batch has 1 item"


def _last_of_stream(world: RanksSeen) -> Iterator[Mistake]:
    for rank in world.ranks:
        if not rank.complete or rank.batch_size < 2:
            continue
        sizes = rank.epochs[0].batches()
        short = [size for size in sizes if size < rank.batch_size]
        if rank.drop_last:
            gone, items = sum(short), sum(sizes)
            if gone >= rank.batch_size and gone >= _MIN_SHARE_DROPPED * items:
                observation = (
                    f"`drop_last=True` drops {gone:,} of {items:,} items of {describe_workers(rank)}"
                )
                yield last_batch(rank, observation, gone, WORKER_TAILS_REMEDY)
                return
            if items and gone == items:
                yield last_batch(
                    rank,
                    f"`drop_last=True` drops all of {count_noun(items, 'item')}",
                    gone,
                    KEEP_ITEMS_REMEDY,
                )
                return
        elif 1 in short and len(sizes) > 1:
            many = short.count(1)
            observation = (
                f"the last batch of {many} of {describe_workers(rank)} has 1 item"
                if rank.workers > 1
                else _SINGLE_ITEM
            )
            yield last_batch(rank, observation, many, SINGLE_ITEM_REMEDY)
            return


def describe_workers(rank: RankItems) -> str:
    return count_noun(rank.workers, "worker") if rank.workers else "the loader"
