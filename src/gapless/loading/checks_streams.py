"""Mistakes of streams: counts and contents of their items."""

from __future__ import annotations

from collections.abc import Iterator

import numpy

from gapless.loading.checks_common import (
    ENOUGH,
    NOTHING,
    SINGLE,
    TAILS,
    Array,
    World,
    by_ranks,
    last,
    lost,
    of,
)
from gapless.loading.rank_items import RankItems
from gapless.model.loading_mistakes import Mistake, mistake

_WORTH = 0.01
"""Part of the items below which leaving some out is what `drop_last` is for."""


def of_streams(world: World) -> Iterator[Mistake]:
    """Every mistake of a stream."""
    for check in (_repeated_stream, _lost_stream, _same_stream, _last_of_stream):
        yield from check(world)


def _counts(parts: list[Array]) -> tuple[Array, Array]:
    return numpy.unique(
        numpy.concatenate(parts) if parts else numpy.empty(0, numpy.int64), return_counts=True
    )


def _more(of: list[Array], than: list[Array]) -> int:
    """Items of `of` beyond those of `than`, both with their multiplicities."""
    values, counts = _counts(of)
    known = dict(zip(*(part.tolist() for part in _counts(than)), strict=True))
    return sum(
        max(0, count - known.get(value, 0))
        for value, count in zip(values.tolist(), counts.tolist(), strict=True)
    )


def _steady(alone: RankItems | None) -> bool:
    """Whether an item has the same content in each pass, so that it can be told by it."""
    if alone is None or not alone.fingerprints or len(alone.epochs) < 2:
        return False
    first, second = (epoch.values() for epoch in alone.epochs[:2])
    size = min(len(first), len(second))
    if not alone.complete:
        return bool(size) and bool(numpy.array_equal(first[:size], second[:size]))
    return _more([first], [second]) == 0 == _more([second], [first])


def foreign(world: World) -> bool:
    """Whether workers yield items that one process alone does not: batches or packed sequences, which depend
    on who makes them. Then items cannot be compared one by one."""
    if not _steady(world.alone) or world.alone is None:
        return False
    known = world.alone.epochs[0].values()
    return any(not numpy.isin(rank.epochs[0].values(), known).all() for rank in world.ranks)


def _repeated_stream(world: World) -> Iterator[Mistake]:
    if not world.complete or foreign(world):
        yield from _same_beginnings(world)
        return
    if world.alone is None:
        return
    whole = world.alone.epochs[0].values()
    each = [rank.epochs[0].values() for rank in world.ranks]
    if not len(whole):
        return
    if _steady(world.alone):
        inside = max(_more([part], [whole]) for part in each)
        among = _more(each, [whole] * 1) - sum(_more([part], [whole]) for part in each)
    elif len(world.alone.epochs[1].values()) != len(whole) or len(whole) < ENOUGH:
        return
    else:  # by their number: as many again from every worker, or every rank
        inside = max(len(part) - len(whole) for part in each)
        among = sum(min(len(part), len(whole)) for part in each) - len(whole)
        inside = inside if inside % len(whole) == 0 else 0
        among = among if among % len(whole) == 0 else 0
    if inside >= max(1, len(world.ranks)):  # up to a rank less one are added to even out
        yield _by_workers(world, len(whole), inside)
    if among >= len(world.ranks) and among > 0 and len(world.ranks) > 1:
        yield by_ranks(world, len(whole), among, bool(inside))


_DIVIDE = (
    "split them: `DataLoader(gapless.loading.shard(dataset), ...)`, or in `__iter__` keep only items whose "
    "index modulo `get_worker_info().num_workers` is `get_worker_info().id`"
)


def _by_workers(world: World, items: int, extra: int) -> Mistake:
    workers = world.first.workers
    if extra == items * (workers - 1):
        each = f"each of {of(workers, 'worker')} yields all {items:,} items"
        seen = f"{each}, so an epoch has {items + extra:,}"
    else:
        seen = (
            f"the {of(workers, 'worker')} of a rank yield {items + extra:,} items, but the data has only "
            f"{items:,}"
        )
    return mistake("GAP311", world.first.line, seen, _DIVIDE, items=items, repeated=extra, workers=workers)


def _same_beginnings(world: World) -> Iterator[Mistake]:
    """Of streams whose end was not seen: do two of them begin with the same items?"""
    for rank in world.ranks:
        parts = list(rank.epochs[0].by_worker().values()) if rank.epochs else []
        common = _common(parts)
        if len(parts) > 1 and common:
            yield mistake(
                "GAP311",
                rank.line,
                f"all {of(len(parts), 'worker')} yield the same first {common:,} items",
                _DIVIDE,
                same=common,
                workers=len(parts),
            )
            break
    common = _common([rank.epochs[0].values() for rank in world.ranks if rank.epochs])
    if len(world.ranks) > 1 and common:
        yield mistake(
            "GAP312",
            world.first.line,
            f"all {of(len(world.ranks), 'rank')} yield the same first {common:,} items",
            "also split by rank: `gapless.loading.shard(dataset)`",
            same=common,
            ranks=len(world.ranks),
        )


def _common(parts: list[Array]) -> int:
    """How many items all `parts` begin with, where that is no chance; else 0."""
    size = min((len(part) for part in parts), default=0)
    if len(parts) < 2 or not size:
        return 0
    first = parts[0][:size]
    alike = numpy.all([part[:size] == first for part in parts[1:]], axis=0)
    length = size if alike.all() else int(numpy.argmin(alike))
    chance = length < max(ENOUGH, size / 2) or len(numpy.unique(first[:length])) < ENOUGH // 2
    return 0 if chance else length


def _lost_stream(world: World) -> Iterator[Mistake]:
    if world.alone is None or not world.complete or not world.alone.epochs:
        return
    whole = world.alone.epochs[0].values()
    each = [rank.epochs[0].values() for rank in world.ranks]
    again = [len(rank.epochs[1].values()) for rank in world.ranks if len(rank.epochs) > 1]
    if len(whole) and again and not sum(again) and sum(map(len, each)):
        yield lost(world, "the second epoch yields nothing", sum(map(len, each)), len(whole), _AGAIN)
        return
    if not _steady(world.alone) or foreign(world):
        return
    missing = _more([whole], each)
    even = len(world.ranks) - 1  # left out so that the ranks have the same number
    if missing > even:
        seen = f"{missing:,} of {len(whole):,} items never come from {world.makers}"
        yield lost(world, seen, missing, len(whole), _REST)


_AGAIN = (
    "let `__iter__` start over each time: open files and create iterators in it, not in `__init__`; "
    "`gapless.loading.shard` takes the function that creates an iterator"
)
_REST = (
    "also give the remainder to some worker when the items do not divide evenly: take every n-th item "
    "instead of n equal blocks, or use `gapless.loading.shard(dataset)`, which loses none"
)


def _same_stream(world: World) -> Iterator[Mistake]:
    """Random numbers were drawn, and the order is the same twice."""
    one = world.first
    if len(one.epochs) < 2:
        return
    used = sorted({draw.name for draw in one.draws if draw.used})
    first, second = (epoch.values() for epoch in one.epochs[:2])
    size = min(len(first), len(second))
    alike = size >= ENOUGH and numpy.array_equal(first[:size], second[:size])
    if not used or not alike or len(numpy.unique(first[:size])) < ENOUGH // 2:
        return
    kept = " (workers are kept and do not see what the loop changes in the dataset)" if one.persistent else ""
    yield mistake(
        "GAP315",
        one.line,
        (
            f"the first two epochs yield the same {size:,} items in the same order, although random "
            f"numbers are drawn from `{used[0]}`{kept}"
        ),
        "include the epoch in the seed: `numpy.random.default_rng([seed, epoch])`, the same in every worker",
        items=size,
    )


_ONE_LEFT = "the last batch has 1 item"


def _last_of_stream(world: World) -> Iterator[Mistake]:
    for rank in world.ranks:
        if not rank.complete or rank.batch_size < 2:
            continue
        sizes = rank.epochs[0].batches()
        short = [size for size in sizes if size < rank.batch_size]
        if rank.drop_last:
            gone, items = sum(short), sum(sizes)
            if gone >= rank.batch_size and gone >= _WORTH * items:
                seen = f"`drop_last=True` drops {gone:,} of {items:,} items of {workers(rank)}"
                yield last(rank, seen, gone, TAILS)
                return
            if items and gone == items:
                yield last(rank, f"`drop_last=True` drops all of {of(items, 'item')}", gone, NOTHING)
                return
        elif 1 in short and len(sizes) > 1:
            many = short.count(1)
            seen = (
                f"the last batch of {many} of {workers(rank)} has 1 item" if rank.workers > 1 else _ONE_LEFT
            )
            yield last(rank, seen, many, SINGLE)
            return


def workers(rank: RankItems) -> str:
    return of(rank.workers, "worker") if rank.workers else "the loader"
